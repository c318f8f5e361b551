/** The runs that wait for a person, with their questions, on top of the list. */

import { get, post, runPath } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { pageUrl } from "../core/router.js";
import { complain, say } from "../parts/dialog.js";
import { hasButtons, QuestionForm } from "../parts/forms.js";
import { count, shortId, statusMark, timeView } from "../parts/labels.js";

const SHOWN = 5;

export class WaitingList {
  constructor(isReadOnly) {
    this.isReadOnly = isReadOnly;
    this.runs = [];
    this.total = 0;
    this.forms = new Map();
    this.isOpen = true;
    this.shows = SHOWN;
  }

  async load(signal) {
    const found = await get("/questions", { limit: 50 }, { signal });
    this.runs = found.runs;
    this.total = found.total;
    const ids = new Set(this.runs.flatMap((run) => run.questions.map((each) => keyOf(run, each))));
    for (const key of this.forms.keys()) if (!ids.has(key)) this.forms.delete(key);
    refresh();
  }

  view() {
    if (!this.runs.length) return null;
    const toggle = () => {
      this.isOpen = !this.isOpen;
      refresh();
    };
    return h(
      "section.waiting",
      { "aria-label": "runs that wait for you" },
      h(
        "h2",
        h(
          "button.heading",
          { "aria-expanded": String(this.isOpen), onclick: toggle },
          h("span", { "aria-hidden": "true" }, this.isOpen ? "▾ " : "▸ "),
          `Waiting for you (${count(this.total)})`,
        ),
      ),
      this.isOpen &&
        h(
          "ul",
          this.runs.slice(0, this.shows).map((run) => this.entry(run)),
        ),
      this.isOpen && this.runs.length > this.shows && this.moreButton(),
    );
  }

  moreButton() {
    const showAll = () => {
      this.shows = this.runs.length;
      refresh();
    };
    return h("button.small", { onclick: showAll }, `${count(this.runs.length - this.shows)} more`);
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
    if (this.isReadOnly || run.questions.length > 1 || !hasButtons(question)) {
      const more = run.questions.length > 1 ? ` (${run.questions.length} questions)` : "";
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
    const approve = async () => {
      try {
        await post(runPath(run.run_id, "/answer"));
        this.leave(run);
        say(`approved ${run.run_id}`);
      } catch (error) {
        complain(error);
      }
    };
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
  }
}

function keyOf(run, question) {
  return `${run.run_id}\0${run.created}\0${question.id}`;
}
