/** The same for many runs: how many, a confirmation, and an outcome for each. */

import { post } from "../core/api.js";
import { h } from "../core/dom.js";
import { pageUrl } from "../core/router.js";
import { actionForm, bulkCode } from "../parts/code.js";
import { attempt, closeDialog, openDialog } from "../parts/dialog.js";
import { count } from "../parts/labels.js";

/** Runs that one request deals with, at most. */
const AT_ONCE = 1000;
const SHOWN = 200;
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
        .slice(0, SHOWN)
        .map((each) =>
          h(
            "li",
            { key: each.run_id, class: `outcome outcome-${each.result}` },
            h("a", { href: pageUrl("runs", each.run_id) }, each.run_id),
            h("span", each.result),
            h("span.faint", each.reason),
          ),
        ),
      runs.length > SHOWN && h("li.faint", `and ${count(runs.length - SHOWN)} more`),
    );
  }
}
