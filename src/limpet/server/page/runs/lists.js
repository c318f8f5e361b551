/** Lists of runs: rows of a table, those that wait for a person, and what is done with many of them. */

import { get, post, runPath } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { pageUrl } from "../core/reader.js";
import { actionForm, bulkCode } from "../parts/code.js";
import { attempt, closeDialog, giveFocus, openDialog, say } from "../parts/dialog.js";
import { hasButtons, QuestionForm } from "../parts/forms.js";
import { count, relativeTime, shortId, shortText, span, statusMark, timeView } from "../parts/labels.js";

/** The table. `selection` has the ids that are selected; `chosen` is the row for the keyboard. */
export function runsTable({ runs, selection = null, toggle = null, toggleAll = null, chosen = -1 }) {
  return h(
    "table.runs",
    h(
      "thead",
      h(
        "tr",
        selection && h("th.c-select", allBox(runs, selection, toggleAll)),
        h("th.c-mark", h("span.hidden", "status")),
        h("th.c-graph", "graph"),
        h("th.c-run", "run"),
        h("th.c-what", ""),
        h("th.c-when", "changed"),
        h("th.c-steps", "steps"),
        h("th.c-time", "took"),
      ),
    ),
    h(
      "tbody",
      runs.map((run, index) => row(run, selection, toggle, index === chosen)),
    ),
  );
}

function allBox(runs, selection, toggleAll) {
  const selected = runs.filter((run) => selection.has(run.run_id)).length;
  return h("input", {
    type: "checkbox",
    "aria-label": "select all runs of this page",
    checked: runs.length > 0 && selected === runs.length,
    indeterminate: selected > 0 && selected < runs.length,
    onchange: (event) => toggleAll(event.target.checked),
  });
}

function row(run, selection, toggle, isChosen) {
  const isSelected = selection?.has(run.run_id) ?? false;
  const classes = ["run-row", isChosen && "chosen", isSelected && "selected"].filter(Boolean);
  return h(
    "tr",
    {
      key: run.run_id,
      class: classes.join(" "),
      "data-run": run.run_id,
      "aria-current": isChosen ? "true" : null,
      onshow: isChosen ? bringIntoView : null,
    },
    selection &&
      h(
        "td.c-select",
        h("input", {
          type: "checkbox",
          checked: isSelected,
          "aria-label": `select run ${run.run_id}`,
          onclick: (event) => toggle(run.run_id, event.shiftKey),
        }),
      ),
    h("td.c-mark", { title: run.status }, statusMark(run.status)),
    h("td.c-graph", h("a", { href: pageUrl("graphs", run.graph) }, run.graph)),
    h(
      "td.c-run",
      h("a", { href: pageUrl("runs", run.run_id), title: run.run_id }, shortId(run.run_id)),
      run.tags.map((tag) => h("span", { key: tag, class: "tag" }, tag)),
    ),
    h("td.c-what", shortText(whatOf(run), 160)),
    h("td.c-when", timeView(run.updated)),
    h("td.c-steps", count(run.step)),
    h("td.c-time", isOver(run) ? span(run.updated - run.created) : ""),
  );
}

let shownRow = null;

function bringIntoView(element) {
  if (shownRow === element) return;
  shownRow = element;
  element.scrollIntoView({ block: "nearest" });
}

/** Whether a run has ended. */
export function isOver(run) {
  return ["completed", "failed", "cancelled"].includes(run.stored_status);
}

/** What there is to say of a run in a line: its error, its question, what it waits for. */
export function whatOf(run) {
  if (run.problem) return run.problem;
  const at = run.node ? ` at ${run.node}` : "";
  if (run.questions.length) {
    const more = run.question_count > 1 ? ` (and ${count(run.question_count - 1)} more)` : "";
    return `${run.questions[0].node} asks: ${run.questions[0].prompt}${more}`;
  }
  switch (run.status) {
    case "completed":
      return "";
    case "failed":
    case "quarantined":
      return run.error ? `failed${at}: ${run.error.type}: ${run.error.message}` : `failed${at}: ${run.reason ?? ""}`;
    case "running":
      return `running${run.node ? ` ${run.node}` : ""}${run.held_by ? ` · ${shortId(run.held_by, 40)}` : ""}`;
    case "retrying":
      return `${run.error ? `${run.error.type}: ${run.error.message}, ` : ""}next attempt${at} ${relativeTime(run.due)}`;
    case "sleeping":
      return `due ${relativeTime(run.due)}${at}`;
    case "queued":
      return `waits for a worker${at}`;
    case "waiting":
      return `waits for ${run.waits.map((wait) => `${wait.kind} ${wait.name}`).join(", ") || "something"}${at}`;
    case "abandoned":
      return `its process ${run.lease_expired ? "hasn't renewed its lease" : "has crashed"}${at}`;
    default:
      return `${run.reason ?? ""}${run.reason ? "" : at}`;
  }
}

const SHOWN = 5;

export class WaitingList {
  constructor(isReadOnly) {
    this.isReadOnly = isReadOnly;
    this.runs = [];
    this.total = 0;
    this.forms = new Map();
    this.shows = SHOWN;
  }

  async load(signal) {
    const found = await get("/questions", { limit: 50 }, { signal });
    this.runs = found.runs;
    this.total = found.total;
    this.hasMore = found.more;
    const ids = new Set(this.runs.flatMap((run) => run.questions.map((each) => keyOf(run, each))));
    for (const key of this.forms.keys()) if (!ids.has(key)) this.forms.delete(key);
    refresh();
  }

  /** Those that wait, closed above a list that is filtered, until the reader opens them. */
  view(isFiltered) {
    if (!this.runs.length) return null;
    const isOpen = this.isOpen ?? !isFiltered;
    const toggle = () => {
      this.isOpen = !isOpen;
      refresh();
    };
    return h(
      "section.waiting",
      { "aria-label": "runs that wait for you" },
      h(
        "h2",
        h(
          "button.heading",
          { "aria-expanded": String(isOpen), onclick: toggle },
          h("span", { "aria-hidden": "true" }, isOpen ? "▾ " : "▸ "),
          `Waiting for you (${count(this.total, "", this.hasMore)})`,
        ),
      ),
      isOpen &&
        h(
          "ul",
          this.runs.slice(0, this.shows).map((run) => this.entry(run)),
        ),
      isOpen && this.total > this.shows && this.more(),
    );
  }

  /** The way to those that aren't shown: here, as far as they are loaded. */
  more() {
    const left = `${count(this.total - this.shows, "", this.hasMore)} more`;
    if (this.shows >= this.runs.length) return h("a", { href: pageUrl("runs", { q: "status:paused" }) }, left);
    const showAll = () => {
      this.shows = this.runs.length;
      refresh();
    };
    return h("button.small", { onclick: showAll }, left);
  }

  entry(run) {
    const [question] = run.questions;
    return h(
      "li",
      { key: run.run_id, class: "waiting-run" },
      statusMark("paused"),
      h("span.waiting-graph", run.graph),
      h("a.waiting-id", { href: pageUrl("runs", run.run_id), title: run.run_id }, shortId(run.run_id)),
      h("div.waiting-what", question ? this.question(run, question) : this.approval(run)),
      h("span.waiting-when", timeView(run.updated)),
    );
  }

  question(run, question) {
    const number = run.question_count;
    if (this.isReadOnly || number > 1 || !hasButtons(question)) {
      const more = number > 1 ? ` (${count(number)} questions)` : "";
      return h("a", { href: pageUrl("runs", run.run_id) }, `${question.node} asks: ${question.prompt}${more}`);
    }
    const key = keyOf(run, question);
    if (!this.forms.has(key)) {
      const form = new QuestionForm(question, (value, by) => this.answer(run, question, value, by), {
        asksName: false,
      });
      this.forms.set(key, form);
    }
    return this.forms.get(key).view();
  }

  approval(run) {
    const approve = () =>
      attempt(async () => {
        await post(runPath(run.run_id, "/answer"));
        this.leave(run);
        say(`approved ${run.run_id}`);
      });
    return h(
      "div.question",
      h("p.prompt", run.reason),
      !this.isReadOnly && h("div.question-actions", h("button.primary", { onclick: approve }, "Approve")),
    );
  }

  async answer(run, question, value, by) {
    await post(runPath(run.run_id, "/answer"), { answers: { [question.id]: value }, ...(by && { by }) });
    this.leave(run);
    say(`answered ${run.run_id}`);
  }

  leave(run) {
    this.runs = this.runs.filter((each) => each.run_id !== run.run_id);
    this.total -= 1;
    refresh();
    requestAnimationFrame(() => giveFocus(document.querySelector(".waiting .heading")));
  }
}

function keyOf(run, question) {
  return `${run.run_id}\0${run.created}\0${question.id}`;
}

/** Runs that one request deals with, at most. */
const AT_ONCE = 1000;
const OUTCOMES_SHOWN = 200;
const DONE = { retry: "handed to the workers", cancel: "cancelled", delete: "deleted" };

/** Ask whether to do this with runs: those with these `ids`, or all that match `filters`. */
export function openBulkDialog(verb, { ids = null, filters = {}, whenDone }) {
  const work = new BulkWork(verb, ids, filters, whenDone);
  openDialog({ title: `${work.word} runs`, view: () => work.view(), wide: true });
  work.plan();
}

class BulkWork {
  constructor(verb, ids, filters, whenDone) {
    this.verb = verb;
    this.word = verb[0].toUpperCase() + verb.slice(1);
    this.ids = ids;
    this.filters = filters;
    this.whenDone = whenDone;
    this.planned = null;
    this.outcomes = null;
    this.problem = "";
  }

  get hasFilter() {
    return Object.keys(this.filters).length > 0;
  }

  get which() {
    return this.hasFilter ? this.filters : { all_runs: true };
  }

  get body() {
    return this.ids ? { run_ids: this.ids } : { ...this.which, limit: AT_ONCE };
  }

  /** Whether there may be more than are dealt with at once. */
  get isCut() {
    return !this.ids && this.planned.runs.length >= AT_ONCE;
  }

  plan() {
    return attempt(async () => {
      this.planned = await post(`/runs/${this.verb}`, { ...this.body, dry_run: true });
    }, this);
  }

  /** Do it with those that the reader has seen, whatever matches by now. */
  async start() {
    const left = this.planned.runs.filter((each) => each.result !== "planned");
    const ids = this.planned.runs.filter((each) => !left.includes(each)).map((each) => each.run_id);
    const { skipped, runs, ...found } = await post(`/runs/${this.verb}`, { run_ids: ids });
    this.outcomes = { ...found, skipped: skipped + left.length, runs: [...runs, ...left] };
    this.whenDone();
  }

  view() {
    if (this.outcomes) return this.result();
    const { planned } = this;
    if (!planned) return h("p.faint", this.problem || "looking which runs that would be …");
    return actionForm({
      work: this,
      title: `${this.word} ${count(planned.planned, "run")}`,
      about: this.question(planned.planned),
      ask: [
        planned.skipped > 0 && h("p.faint", `${count(planned.skipped, "run")} can't be: see below.`),
        this.list(planned.runs),
      ],
      code: bulkCode(this.verb, this.isCut ? this.body : this.which, this.ids),
      tone: this.verb === "retry" ? "primary" : "danger",
      isReady: planned.planned > 0,
      action: () => this.start(),
    });
  }

  question(number) {
    const which = this.ids ? "of those that are selected" : this.hasFilter ? "that match" : "in the store";
    const more = this.isCut ? `, the newest ${count(AT_ONCE)}; do it again for the others` : "";
    const loss = this.verb === "delete" ? " Their journals are deleted for ever." : "";
    return `${this.word} ${count(number, "run")} ${which}${more}?${loss}`;
  }

  result() {
    const { done, skipped, failed, runs } = this.outcomes;
    const parts = [`${count(done, "run")} ${DONE[this.verb]}`];
    if (skipped) parts.push(`${count(skipped)} skipped`);
    if (failed) parts.push(`${count(failed)} failed`);
    return [
      h("p", { role: "status" }, `${parts.join(", ")}.`),
      this.list(runs),
      h("div.dialog-actions", h("button.primary", { onclick: closeDialog }, "Done")),
    ];
  }

  list(runs) {
    return h(
      "ul.outcomes",
      runs
        .slice(0, OUTCOMES_SHOWN)
        .map((each) =>
          h(
            "li",
            { key: each.run_id, class: `outcome outcome-${each.result}` },
            h("a", { href: pageUrl("runs", each.run_id) }, each.run_id),
            h("span", each.result),
            h("span.faint", each.reason),
          ),
        ),
      runs.length > OUTCOMES_SHOWN && h("li.faint", `and ${count(runs.length - OUTCOMES_SHOWN)} more`),
    );
  }
}
