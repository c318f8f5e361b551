/** What a step did: its error, its questions, what changed, what it emitted, and its times. */

import { get, runPath, textOf } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { serverNow } from "../core/reader.js";
import { codePanel, copyButton, copyJsonButton, stateCode } from "../parts/code.js";
import { attempt } from "../parts/dialog.js";
import { count, exactTime, size, span, statusLabel, timeView } from "../parts/labels.js";
import { diffView, putLarge, stateTree, TreeState, valueTree } from "../parts/values.js";
import { isWorking, piecesOf, statusOf } from "./timeline_model.js";
import { tabs } from "./views.js";

const OUTPUT_SHOWN = 100;

export class Inspector {
  constructor({ id, fork }) {
    this.id = id;
    this.fork = fork;
    this.mode = "changed";
    this.row = null;
    this.wanted = null;
    this.clear();
  }

  clear() {
    this.tree = new TreeState();
    this.detail = null;
    this.changes = null;
    this.state = null;
    this.problem = "";
    this.attempt = null;
  }

  /** Show a row: at once if the reader has chosen it, else when all that there is to say of it is loaded. */
  show(row, byReader = true) {
    const isOther = this.row && this.row.id !== row.id;
    const isKnown = this.wanted?.id === row.id && !hasChanged(this.wanted, row);
    if (byReader || !isOther) this.row = row;
    if (byReader && isOther) this.clear();
    refresh();
    if (isKnown) return;
    this.wanted = row;
    if (byReader && isOther) this.request?.abort();
    if (!this.isLoading || this.request.signal.aborted) this.load();
  }

  /** Load what happened in the row, and again if it has changed meanwhile, or another one is to be shown. */
  async load() {
    const request = new AbortController();
    this.request = request;
    this.isLoading = true;
    let row = null;
    while (row !== this.wanted && !request.signal.aborted) {
      row = this.wanted;
      await this.loadRow(row, request.signal);
    }
    if (this.request === request) this.isLoading = false;
    refresh();
  }

  async loadRow(row, signal) {
    const { step, branch } = row;
    const ask = (rest, query) => get(runPath(this.id, rest), query, { signal });
    const changed = isStep(row) && ask("/diff", { a: step - 1, b: step, branch });
    const needsState = stateStep(row) !== undefined && (step === undefined || this.mode === "state");
    const stored = needsState && ask("/state", { step: stateStep(row), branch });
    // All at once, as a page that is paused meanwhile asks for nothing more. Old states may be no longer kept.
    const found = await Promise.allSettled([ask(`/timeline/${row.id}`, {}), changed, stored]);
    if (signal.aborted) return;
    if (row.id !== this.row.id) this.clear();
    const [detail, difference, state] = found.map((each) => each.value || null);
    Object.assign(this, { row, detail, changes: difference?.changes, state, problem: found[0].reason?.message });
    refresh();
  }

  loadState() {
    const { row } = this;
    return attempt(async () => {
      const found = await get(runPath(this.id, "/state"), { step: stateStep(row), branch: row.branch });
      // The row is another object each time that the run has changed.
      if (this.row.id === row.id && stateStep(this.row) === stateStep(row)) this.state = found;
    });
  }

  /** The step after which a fork calls the row's node again. */
  stepBefore() {
    return this.row?.step ? this.row.step - 1 : (this.row?.after ?? null);
  }

  hasStep() {
    return stateStep(this.row) !== undefined;
  }

  view(run, forms, isReadOnly) {
    const { row } = this;
    const left = run.question_count - forms.length;
    return h(
      "aside.inspector",
      { "aria-label": "the selected step" },
      forms.length > 0 &&
        h(
          "section.panel.panel-question",
          { key: "questions", "aria-label": "questions" },
          forms.map((form) => form.view()),
          left > 0 && h("p.faint", `and ${count(left, "more question")}`),
        ),
      run.waits_for_approval && h("section.panel.panel-question", { key: "approval" }, h("p.prompt", run.reason)),
      this.failure(run),
      row && [
        h(
          "header",
          { key: "head", class: "inspector-head" },
          h("h2", row.label || "step"),
          statusLabel(statusOf(row, run)),
          this.hasStep() && h("span.faint", row.step === undefined ? `after step ${row.after}` : `step ${row.step}`),
          row.branch && h("span.faint", `in ${row.branch}`),
        ),
        this.attempts(),
        this.notes(),
        this.content(),
        this.output(),
        this.times(run),
        this.actions(run, isReadOnly),
      ],
    );
  }

  /** The error for which the run has stopped, or of the selected step. */
  failure(run) {
    const isRunError = (!this.row || this.row.status === "failed") && run.stored_status === "failed";
    const own = this.attempt === null ? this.detail?.error : this.detail?.attempts?.[this.attempt]?.error;
    const isSame = own && run.error && own.message === run.error.message; // the run's has the traceback
    const error = isRunError && (isSame || !own) ? run.error : own;
    const text = !error && isRunError ? run.reason : null;
    if (!error && !text) return null;
    return h(
      "section.panel.panel-error",
      { key: "error", "aria-label": "error" },
      error ? h("p.error-text", h("b", `${error.type}: `), error.message) : h("p.error-text", text),
      error && h("p.faint", [error.node && `in ${error.node}`, lastFrame(error)].filter(Boolean).join(" · ")),
      error?.traceback &&
        h(
          "details.traceback",
          {
            open: this.tree.isOpen("traceback", error.traceback.length < 1200),
            ontoggle: (event) => this.tree.open.set("traceback", event.currentTarget.open),
          },
          h("summary", "traceback"),
          h("pre", error.traceback),
        ),
      error &&
        copyButton("copy", () => `${error.type}: ${error.message}\n${error.traceback ?? ""}`, "copied the error"),
    );
  }

  attempts() {
    const attempts = this.row.attempts ?? [];
    if (attempts.length < 2) return null;
    const choose = (index) => {
      this.attempt = this.attempt === index ? null : index;
      refresh();
    };
    return h(
      "div.attempts",
      { role: "group", "aria-label": "attempts" },
      attempts.map(([from, to, error], index) =>
        h(
          "button",
          {
            key: index,
            class: this.attempt === index ? "small chosen" : "small",
            title: error,
            onclick: () => choose(index),
          },
          `${index + 1} · ${span(to - from)}`,
        ),
      ),
    );
  }

  notes() {
    const { row } = this;
    const asked = this.detail?.questions ?? [];
    const answers = Object.entries(this.detail?.answers ?? {});
    const { by = {}, answered = {} } = this.detail ?? {};
    return [
      row.status === "waiting" && h("p", { key: "waits" }, `waits for ${row.note}`),
      row.status === "skipped" && h("p", { key: "skipped" }, row.note),
      this.detail?.approved_by && h("p.faint", { key: "approved" }, `approved by ${this.detail.approved_by}`),
      answers.length > 0 &&
        h(
          "dl",
          { key: "answers", class: "answers" },
          answers.map(([id, value]) => [
            h("dt", { key: `${id}-q` }, asked.find((each) => each.id === id)?.prompt ?? id),
            h(
              "dd",
              { key: `${id}-a` },
              valueTree(value, this.tree, `answer-${id}`),
              h("span.faint", ` ${by[id] ? `by ${by[id]}, ` : ""}`, timeView(answered[id])),
            ),
          ]),
        ),
    ];
  }

  content() {
    if (!this.hasStep()) return null;
    const hasChanges = isStep(this.row) && (this.changes || !this.detail);
    const ofStep = [...(hasChanges ? ["changed"] : []), "update", "state"];
    const modes = this.row.step === undefined ? ["input"] : ofStep;
    const chosen = modes.includes(this.mode) ? this.mode : modes[0];
    return h(
      "section.panel",
      { key: "content" },
      h(
        "div.segments",
        tabs(modes, chosen, (mode) => this.setMode(mode)),
        this.copyJson(chosen),
      ),
      this.problem && h("p.field-problem", this.problem),
      this.shown(chosen),
    );
  }

  copyJson(mode) {
    const state = this.state?.values;
    const data = { changed: this.changes, update: this.detail?.update, state, input: state }[mode];
    return data && copyJsonButton(data);
  }

  setMode(mode) {
    this.mode = mode;
    if (mode === "state" && !this.state) this.loadState();
    refresh();
  }

  shown(mode) {
    if (!this.detail && !this.problem) return h("p.faint", "loading …");
    if (mode === "changed" && this.changes)
      return diffView({ changes: this.changes, load: (key) => this.loadChange(key), tree: this.tree });
    if (mode === "state" || mode === "input") return this.stateContent(mode);
    if (!this.detail?.update) return null;
    return stateTree({
      values: this.detail.update,
      large: this.detail.large ?? {},
      load: (key) => this.loadUpdate(key),
      tree: this.tree,
    });
  }

  stateContent(mode) {
    if (!this.state) return h("p.faint", mode === "state" ? "loading …" : "It is no longer kept.");
    return stateTree({
      values: this.state.values,
      large: this.state.large,
      load: (key) => this.loadValue(key),
      tree: this.tree,
    });
  }

  /** Load a large value. It belongs to what was shown then: meanwhile, another row may be. */
  loadLarge(rest, query, put) {
    return attempt(async () => put(await get(runPath(this.id, rest), query)));
  }

  loadChange(key) {
    const { changes, row } = this;
    const query = { a: row.step - 1, b: row.step, branch: row.branch, key };
    return this.loadLarge("/diff", query, (found) => Object.assign(changes, found.changes));
  }

  loadValue(key) {
    const { values, large } = this.state;
    const query = { step: stateStep(this.row), branch: this.row.branch, key };
    return this.loadLarge("/state", query, (found) => putLarge(found.values, values, large));
  }

  loadUpdate(key) {
    const { update, large } = this.detail;
    return this.loadLarge(`/timeline/${this.row.id}`, { key }, (found) => putLarge(found.update, update, large));
  }

  loadItem(item) {
    const query = { after: item.number - 1, limit: 1, whole: true };
    return this.loadLarge("/output", query, ({ items }) => Object.assign(item, items[0], { large: null }));
  }

  output() {
    const output = this.detail?.output ?? [];
    if (!output.length) return null;
    const shown = output.slice(-OUTPUT_SHOWN);
    const isText = shown.every((each) => typeof each.data === "string");
    return h(
      "section.panel",
      { "aria-label": "emitted" },
      h(
        "h3",
        `emitted · ${count(this.row.output ?? output.length, "item")}`,
        copyJsonButton(output.map((each) => each.data)),
      ),
      this.detail.more_output && h("p.faint", "only the newest are shown"),
      isText
        ? h("pre.emitted", shown.map((each) => each.data).join(""))
        : h(
            "ol.emitted-list",
            shown.map((each, index) =>
              h(
                "li",
                { key: index },
                each.large
                  ? h("button.small", { onclick: () => this.loadItem(each) }, `${size(each.large.data)}, show`)
                  : valueTree(each.data, this.tree, `out-${index}`),
              ),
            ),
          ),
    );
  }

  times(run) {
    const { row } = this;
    const end = row.end ?? serverNow();
    const waited = piecesOf(row, end, isWorking(run))
      .filter((piece) => piece.kind === "wait")
      .reduce((sum, piece) => sum + piece.to - piece.from, 0);
    const pairs = [
      ["began", exactTime(row.start)],
      row.end !== undefined && ["ended", exactTime(row.end)],
      ["took", span(end - row.start)],
      waited > 0 && ["of that, it waited", span(waited)],
      row.attempts?.length > 0 && ["attempts that failed", count(row.attempts.length)],
      row.crashes && ["crashes of its process", count(row.crashes)],
      this.detail?.bytes > 0 && ["update", size(this.detail.bytes)],
    ];
    return h(
      "dl.times",
      pairs
        .filter(Boolean)
        .map(([name, value]) => [h("dt", { key: `${name}-n` }, name), h("dd", { key: `${name}-v` }, value)]),
    );
  }

  actions(run, isReadOnly) {
    if (!this.hasStep() || run.status === "thread") return null;
    return h(
      "div.inspector-actions",
      !isReadOnly && h("button", { onclick: () => this.fork(this.stepBefore(), this.row.branch) }, "fork before this step"),
      !isReadOnly &&
        this.row.step !== undefined &&
        h("button", { onclick: () => this.fork(this.row.step, this.row.branch) }, "fork after it"),
      codePanel(stateCode(run.run_id, stateStep(this.row), this.row.branch)),
    );
  }
}

/** The step whose state is shown with a row: its own, or of one that hasn't completed the one before. */
function stateStep(row) {
  return row.step ?? row.after;
}

const FRAME = /File "(?:[^"]*[\\/])?([^"]+)", line (\d+), in (.+)/g;

/** Where an error was raised. */
function lastFrame({ traceback }) {
  const [, file, line, name] = [...(traceback ?? "").matchAll(FRAME)].pop() ?? [];
  return file && `${file}:${line} in ${name}`;
}

/** Whether a row is a step that is complete. */
function isStep(row) {
  return row.step > 0;
}

/** Whether something has happened in a row that the server says more of. */
function hasChanged(before, row) {
  const facts = ({ end, status, output, attempts }) => textOf([end, status, output, attempts?.length]);
  return facts(before) !== facts(row);
}
