/** Who executes runs, and which runs no live worker can continue. */

import { get } from "../core/api.js";
import { h } from "../core/dom.js";
import { count } from "../core/format.js";
import { pageUrl } from "../core/router.js";
import { refresh } from "../core/screen.js";
import { codeBlock } from "../parts/code_panel.js";
import { complain } from "../parts/notices.js";
import { statusMark } from "../parts/status_mark.js";
import { timeView } from "../parts/time.js";

const RELOAD = 5000;

export class WorkersPage {
  title = "Workers";

  start() {
    this.load();
    this.timer = setInterval(() => !document.hidden && this.load(), RELOAD);
  }

  stop() {
    clearInterval(this.timer);
  }

  async load() {
    try {
      ({ workers: this.workers, unserved: this.unserved } = await get("/workers"));
    } catch (error) {
      complain(error);
    }
    refresh();
  }

  view() {
    return h(
      "main",
      { class: "page" },
      h("h1", {}, "Workers"),
      this.unserved?.length > 0 && this.waiting(),
      this.workers && (this.workers.length ? this.table() : this.nothing()),
    );
  }

  waiting() {
    return h(
      "section",
      { class: "hint" },
      h("h2", {}, "Runs that no worker can continue"),
      h(
        "ul",
        {},
        this.unserved.map((lane, index) =>
          h(
            "li",
            { key: index },
            h("a", { href: `${pageUrl("runs")}?q=${encodeURIComponent(`graph:"${lane.graph}" unserved:true`)}` }, `${count(lane.runs, "run")} of ${lane.graph}`),
            h("span", { class: "faint" }, ` in the queue ${lane.queue}: ${lane.reason}`),
          ),
        ),
      ),
    );
  }

  table() {
    return h(
      "table",
      { class: "plain-table wide" },
      h("thead", {}, h("tr", {}, ["", "process", "graphs", "queues", "runs", "since", "last seen"].map((each, index) => h("th", { key: index }, each)))),
      h("tbody", {}, this.workers.map((each, index) => this.row(each, index))),
    );
  }

  row(worker, index) {
    const queues = worker.queues?.length ? worker.queues.join(", ") : "all";
    return h(
      "tr",
      { key: `${worker.process} ${index}` },
      h("td", { title: worker.is_live ? "alive" : "gone" }, statusMark(worker.is_live ? "alive" : "abandoned")),
      h("td", {}, worker.process),
      h("td", {}, Object.keys(worker.graphs).join(", ")),
      h("td", {}, queues),
      h("td", {}, `${count(worker.runs)} of ${count(worker.concurrency)}`),
      h("td", {}, timeView(worker.since)),
      h("td", {}, timeView(worker.seen)),
    );
  }

  nothing() {
    return h(
      "div",
      { class: "empty" },
      h("p", {}, "No worker is running. A worker executes queued runs, and continues those whose process has crashed:"),
      codeBlock("Command line", "limpet worker MODULE:GRAPH"),
    );
  }
}
