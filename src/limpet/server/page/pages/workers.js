/** What starts runs by itself, and who executes them: schedules and workers. */

import { get, post, remove } from "../core/api.js";
import { h } from "../core/dom.js";
import { pageUrl, settings } from "../core/reader.js";
import { codeBlock, confirm, scheduleCode } from "../parts/code.js";
import { attempt, say } from "../parts/dialog.js";
import { count, statusMark, timeView } from "../parts/labels.js";
import { termText } from "../runs/filter.js";

const RELOAD = 5000;
const SHOWN_RUNS = 5;

/** A page that loads what it shows again and again, while it is visible. */
class ReloadedPage {
  constructor({ about }) {
    this.about = about;
    this.liveState = "wait";
  }

  start() {
    this.reload();
    this.timer = setInterval(() => !document.hidden && this.checkLive(), RELOAD);
  }

  checkLive() {
    if (!settings.paused) this.reload();
  }

  stop() {
    clearInterval(this.timer);
  }

  reload() {
    return attempt(async () => {
      try {
        await this.load();
        this.liveState = "on";
      } catch (error) {
        this.liveState = "lost";
        throw error;
      }
    });
  }

  table(columns, things) {
    return h(
      "table.plain-table.wide",
      h(
        "thead",
        h(
          "tr",
          columns.map((each, index) => h("th", { key: index }, each)),
        ),
      ),
      h(
        "tbody",
        things.map((each) => this.row(each)),
      ),
    );
  }
}

export class SchedulesPage extends ReloadedPage {
  title = "Schedules";

  async load() {
    this.schedules = (await get("/schedules")).schedules;
  }

  view() {
    const columns = ["", "name", "graph", "when", "next", "newest runs", ""];
    const content = () => (this.schedules.length ? this.table(columns, this.schedules) : this.nothing());
    return h("main.page", h("h1", "Schedules"), this.schedules && content());
  }

  row(schedule) {
    const recent = (schedule.recent ?? []).filter((each) => each.run_id).slice(-SHOWN_RUNS);
    return h(
      "tr",
      { key: schedule.name },
      h("td", { title: schedule.status }, statusMark(schedule.status)),
      h("td", h("b", schedule.name)),
      h("td", h("a", { href: pageUrl("graphs", schedule.graph) }, schedule.graph)),
      h("td", schedule.when, h("span.faint", ` ${schedule.timezone ?? ""}`)),
      h("td", schedule.next_time ? timeView(schedule.next_time) : h("span.faint", schedule.status)),
      h(
        "td.recent",
        recent.map((each) =>
          h(
            "a",
            { key: each.run_id, href: pageUrl("runs", each.run_id), title: `${each.run_id}: ${each.status ?? ""}` },
            statusMark(each.status ?? "queued"),
          ),
        ),
      ),
      h("td.row-actions", !this.about.read_only && this.actions(schedule)),
    );
  }

  actions(schedule) {
    const { name, status } = schedule;
    const path = `/schedules/${encodeURIComponent(name)}`;
    const button = (word, verb, onclick) =>
      h("button.small", { key: word, title: scheduleCode(verb, name).cli, onclick }, word);
    const change = status === "paused" ? "resume" : "pause";
    return [
      button("run now", "trigger", () => this.do(async () => this.triggered(await post(`${path}/trigger`)))),
      button(change, change, () => this.do(() => post(`${path}/${change}`))),
      button("delete", "delete", () => this.confirmDelete(name, path)),
    ];
  }

  triggered({ run_id: id }) {
    say(`the next worker starts ${id}`, { href: pageUrl("runs", id), text: "open" });
  }

  do(action) {
    return attempt(async () => {
      await action();
      await this.load();
    });
  }

  confirmDelete(name, path) {
    confirm({
      title: "Delete schedule",
      tone: "danger",
      about: `${name} starts nothing any more. Its runs stay.`,
      code: () => scheduleCode("delete", name),
      action: () => remove(path),
      whenDone: () => this.reload(),
    });
  }

  nothing() {
    return h(
      "div.empty",
      h("p", "Nothing starts by itself yet. This starts a run every day:"),
      codeBlock(
        "Command line",
        "limpet schedules add daily MODULE:GRAPH --every 24h",
      ),
    );
  }
}

export class WorkersPage extends ReloadedPage {
  title = "Workers";

  async load() {
    ({ workers: this.workers, unserved: this.unserved } = await get("/workers"));
  }

  view() {
    const columns = ["", "process", "graphs", "queues", "runs", "since", "last seen"];
    const content = () => (this.workers.length ? this.table(columns, this.workers) : this.nothing());
    return h("main.page", h("h1", "Workers"), this.unserved?.length > 0 && this.waiting(), this.workers && content());
  }

  waiting() {
    return h(
      "section.hint",
      h("h2", "Runs that no worker can continue"),
      h(
        "ul",
        this.unserved.map((lane, index) =>
          h(
            "li",
            { key: index },
            h(
              "a",
              { href: pageUrl("runs", { q: `${termText("graph", lane.graph)} unserved:true` }) },
              `${count(lane.runs, "run", lane.has_more)} of ${lane.graph}`,
            ),
            h("span.faint", ` in the queue ${lane.queue}: ${lane.reason}`),
          ),
        ),
      ),
    );
  }

  row(worker, index) {
    const queues = worker.queues?.length ? worker.queues.join(", ") : "all";
    return h(
      "tr",
      { key: `${worker.process} ${index}` },
      h("td", { title: worker.is_live ? "alive" : "gone" }, statusMark(worker.is_live ? "alive" : "abandoned")),
      h("td", worker.process),
      h("td", Object.keys(worker.graphs).join(", ")),
      h("td", queues),
      h("td", `${count(worker.runs)} of ${count(worker.concurrency)}`),
      h("td", timeView(worker.since)),
      h("td", timeView(worker.seen)),
    );
  }

  nothing() {
    return h(
      "div.empty",
      h("p", "No worker is running. A worker executes queued runs, and continues those whose process has crashed:"),
      codeBlock("Command line", "limpet worker MODULE:GRAPH"),
    );
  }
}
