/** What starts runs by itself, and who executes them: schedules and workers. */

import { get, post, remove } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { count } from "../core/format.js";
import { pageUrl } from "../core/router.js";
import { confirm } from "../parts/actions.js";
import { codeBlock } from "../parts/code.js";
import { complain, say } from "../parts/dialog.js";
import { statusMark, timeView } from "../parts/labels.js";

const RELOAD = 10000;
const SHOWN_RUNS = 5;

export class SchedulesPage {
  title = "Schedules";

  constructor({ about }) {
    this.about = about;
  }

  start() {
    this.load();
    this.timer = setInterval(() => !document.hidden && this.load(), RELOAD);
  }

  stop() {
    clearInterval(this.timer);
  }

  async load() {
    try {
      this.schedules = (await get("/schedules")).schedules;
    } catch (error) {
      complain(error);
    }
    refresh();
  }

  view() {
    return h("main", { class: "page" }, h("h1", {}, "Schedules"), this.schedules && (this.schedules.length ? this.table() : this.nothing()));
  }

  table() {
    return h(
      "table",
      { class: "plain-table wide" },
      h("thead", {}, h("tr", {}, ["", "name", "graph", "when", "next", "newest runs", ""].map((each, index) => h("th", { key: index }, each)))),
      h("tbody", {}, this.schedules.map((each) => this.row(each))),
    );
  }

  row(schedule) {
    const recent = (schedule.recent ?? []).filter((each) => each.run_id).slice(-SHOWN_RUNS);
    return h(
      "tr",
      { key: schedule.name },
      h("td", { title: schedule.status }, statusMark(schedule.status)),
      h("td", {}, h("b", {}, schedule.name)),
      h("td", {}, h("a", { href: pageUrl("graphs", schedule.graph) }, schedule.graph)),
      h("td", {}, schedule.when, h("span", { class: "faint" }, ` ${schedule.timezone ?? ""}`)),
      h("td", {}, schedule.next_time ? timeView(schedule.next_time) : h("span", { class: "faint" }, schedule.status)),
      h(
        "td",
        { class: "recent" },
        recent.map((each) => h("a", { key: each.run_id, href: pageUrl("runs", each.run_id), title: `${each.run_id}: ${each.status ?? ""}` }, statusMark(each.status ?? "queued"))),
      ),
      h("td", { class: "row-actions" }, !this.about.read_only && this.actions(schedule)),
    );
  }

  actions(schedule) {
    const { name, status } = schedule;
    const path = `/schedules/${encodeURIComponent(name)}`;
    return [
      h("button", { key: "now", class: "small", onclick: () => this.do(name, async () => this.triggered(await post(`${path}/trigger`))) }, "run now"),
      status === "paused"
        ? h("button", { key: "resume", class: "small", onclick: () => this.do(name, () => post(`${path}/resume`)) }, "resume")
        : h("button", { key: "pause", class: "small", onclick: () => this.do(name, () => post(`${path}/pause`)) }, "pause"),
      h("button", { key: "delete", class: "small", onclick: () => this.confirmDelete(name, path) }, "delete"),
    ];
  }

  triggered({ run_id: id }) {
    say(`started ${id}`, { href: pageUrl("runs", id), text: "open" });
  }

  async do(name, action) {
    try {
      await action();
      await this.load();
    } catch (error) {
      complain(error);
    }
  }

  confirmDelete(name, path) {
    const code = {
      cli: `limpet schedules delete ${name}`,
      python: `from limpet import Schedules\n\nSchedules(STORE).delete(${JSON.stringify(name)})`,
    };
    confirm({
      title: "Delete schedule",
      tone: "danger",
      about: `${name} starts nothing any more. Its runs stay.`,
      code: () => code,
      action: () => remove(path),
      whenDone: () => this.load(),
    });
  }

  nothing() {
    return h(
      "div",
      { class: "empty" },
      h("p", {}, "Nothing starts by itself yet. This starts a run every night:"),
      codeBlock("Command line", 'limpet schedules add nightly MODULE:GRAPH --cron "30 2 * * *" --timezone Europe/Berlin'),
    );
  }
}

const WORKERS_RELOAD = 5000;

export class WorkersPage {
  title = "Workers";

  start() {
    this.load();
    this.timer = setInterval(() => !document.hidden && this.load(), WORKERS_RELOAD);
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
            h("a", { href: pageUrl("runs", { q: `graph:"${lane.graph}" unserved:true` }) }, `${count(lane.runs, "run")} of ${lane.graph}`),
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
