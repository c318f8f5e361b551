/** What happened in a run, event by event, in pages. */

import { get, runPath } from "../core/api.js";
import { h } from "../core/dom.js";
import { exactTime } from "../core/format.js";
import { refresh } from "../core/screen.js";
import { shortForm, TreeState, valueTree } from "../parts/state_tree.js";

const PAGE = 200;
const TYPES = ["step", "output", "retry", "error", "question", "answer", "message", "sleep", "task_start", "update"];
const PLACE = new Set(["type", "run_id", "cursor", "at", "step", "node", "branch", "task", "layer"]);

export class EventsView {
  constructor(id) {
    this.id = id;
    this.tree = new TreeState();
    this.type = "";
    this.events = [];
    this.next = null;
    this.hasMore = true;
  }

  async load(isFirst = false) {
    if (isFirst) {
      this.events = [];
      this.next = null;
    }
    this.problem = "";
    try {
      const found = await get(runPath(this.id, "/events"), { after: this.next, type: this.type, limit: PAGE });
      this.events = [...this.events, ...found.events];
      this.next = found.next;
      this.hasMore = found.more;
    } catch (error) {
      this.problem = error.message;
    }
    refresh();
  }

  choose(type) {
    this.type = type;
    this.load(true);
  }

  view() {
    return h(
      "section",
      { class: "events-view" },
      h(
        "label",
        {},
        "show ",
        h(
          "select",
          { value: this.type, onchange: (event) => this.choose(event.target.value) },
          h("option", { value: "" }, "all events"),
          TYPES.map((type) => h("option", { key: type, value: type }, type)),
        ),
      ),
      this.problem && h("p", { class: "field-problem" }, this.problem),
      h("ol", { class: "events" }, this.events.map((event) => this.entry(event))),
      this.hasMore && h("button", { onclick: () => this.load() }, "later events"),
    );
  }

  entry(event) {
    const rest = Object.fromEntries(Object.entries(event).filter(([name]) => !PLACE.has(name)));
    const isOpen = this.tree.isOpen(event.cursor, false);
    const where = [event.branch, event.node ?? event.task].filter(Boolean).join("/");
    return h(
      "li",
      { key: event.cursor },
      h(
        "button",
        { class: "event", "aria-expanded": String(isOpen), onclick: () => this.tree.set(event.cursor, !isOpen) },
        h("time", { title: exactTime(event.at) }, exactTime(event.at).slice(11, 23)),
        h("b", { class: `event-type event-${event.type}` }, event.type),
        h("span", {}, where),
        h("span", { class: "faint" }, Object.keys(rest).length ? shortForm(rest) : ""),
      ),
      isOpen && valueTree(rest, this.tree, `${event.cursor}\0`),
    );
  }
}
