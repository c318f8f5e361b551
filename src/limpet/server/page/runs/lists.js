/** Runs as rows of a table, and those that wait for a person, with their questions. */

import { get, post, runPath } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { pageUrl } from "../core/router.js";
import { attempt, giveFocus, say } from "../parts/dialog.js";
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
