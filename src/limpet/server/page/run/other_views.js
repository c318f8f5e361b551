/** The whole state of a run after a step, and what happened in it, event by event. */

import { get, runPath, textOf } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { codePanel, copyButton, stateCode } from "../parts/code.js";
import { exactTime } from "../parts/labels.js";
import { shortForm, stateTree, TreeState, valueTree } from "../parts/values.js";

export class StateView {
  constructor(id) {
    this.id = id;
    this.tree = new TreeState();
    this.step = null;
    this.problem = "";
  }

  /** Load the state after a step; the newest, if it is null. */
  async load(step) {
    this.request?.abort();
    this.request = new AbortController();
    this.step = step;
    this.problem = "";
    try {
      this.state = await get(runPath(this.id, "/state"), { step }, { signal: this.request.signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      this.state = null;
      this.problem = error.message;
    }
    refresh();
  }

  async loadKey(key) {
    const found = await get(runPath(this.id, "/state"), { step: this.step, key });
    const { [key]: gone, ...large } = this.state.large;
    this.state = { values: { ...this.state.values, ...found.values }, large };
    refresh();
  }

  view(run) {
    const step = this.step ?? run.step;
    const choose = (event) => this.load(Number(event.target.value));
    return h(
      "section.state-view",
      h(
        "div.state-tools",
        h(
          "label",
          "after step ",
          h("input", { type: "number", min: 0, max: run.step, value: String(step), onchange: choose }),
        ),
        h("input", {
          type: "range",
          "aria-label": "step",
          min: 0,
          max: run.step,
          value: String(step),
          onchange: choose,
        }),
        h("button.small", { disabled: this.step === null, onclick: () => this.load(null) }, "newest"),
        this.state && copyButton("copy JSON", () => textOf(this.state.values, 2), "copied as JSON"),
      ),
      this.problem && h("p.field-problem", this.problem),
      this.state &&
        stateTree({
          values: this.state.values,
          large: this.state.large,
          load: (key) => this.loadKey(key),
          tree: this.tree,
        }),
      codePanel(stateCode(run.run_id, this.step)),
    );
  }
}

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
    this.request?.abort();
    this.request = new AbortController();
    const { signal } = this.request;
    this.problem = "";
    try {
      const query = { after: this.next, type: this.type, limit: PAGE };
      const found = await get(runPath(this.id, "/events"), query, { signal });
      this.events = [...this.events, ...found.events];
      this.next = found.next;
      this.hasMore = found.more;
    } catch (error) {
      if (error.name === "AbortError") return;
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
      "section.events-view",
      h(
        "label",
        "show ",
        h(
          "select",
          { value: this.type, onchange: (event) => this.choose(event.target.value) },
          h("option", { value: "" }, "all events"),
          TYPES.map((type) => h("option", { key: type, value: type }, type)),
        ),
      ),
      this.problem && h("p.field-problem", this.problem),
      h(
        "ol.events",
        this.events.map((event) => this.entry(event)),
      ),
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
        "button.event",
        { "aria-expanded": String(isOpen), onclick: () => this.tree.set(event.cursor, !isOpen) },
        h("time", { title: exactTime(event.at) }, exactTime(event.at).slice(11, 23)),
        h("b", { class: `event-type event-${event.type}` }, event.type),
        h("span", where),
        h("span.faint", Object.keys(rest).length ? shortForm(rest) : ""),
      ),
      isOpen && valueTree(rest, this.tree, `${event.cursor}\0`),
    );
  }
}
