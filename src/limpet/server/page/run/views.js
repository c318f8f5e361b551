/** Views of runs, and how one is chosen: the graph as a picture, the state after a step, all events, and two runs side by side. */

import { get, getText, runPath } from "../core/api.js";
import { h } from "../core/dom.js";
import { pageUrl, setQuery } from "../core/reader.js";
import { codePanel, compareCode, copyJsonButton, needsGraph, stateCode } from "../parts/code.js";
import { attempt } from "../parts/dialog.js";
import { count, exactTime, shortId, size, span, statusLabel, timeView } from "../parts/labels.js";
import { diffView, putLarge, shortForm, stateTree, TreeState, valueTree } from "../parts/values.js";
import { isOver, whatOf } from "../runs/lists.js";

/** Nodes above which no picture is drawn. */
const MOST_NODES = 1000;
/** Pixels that are seen around the chosen node. */
const AROUND = 24;
/** How small a picture is made to fit: with smaller texts than these, it is scrolled. */
const LEAST_SCALE = 0.8;

export class GraphView {
  constructor({ graph, runId = null, select = null }) {
    this.graph = graph;
    this.runId = runId;
    this.select = select;
    this.picture = null;
    this.problem = "";
    this.asked = 0;
    this.shown = 0;
  }

  /** Load the picture; `facts` are those of the graph, null if the server doesn't know it. */
  async load(facts) {
    this.facts = facts;
    if (!facts || facts.nodes.length > MOST_NODES) return;
    this.asked += 1;
    const number = this.asked;
    await attempt(async () => {
      const text = await getText(`/graphs/${encodeURIComponent(this.graph)}/picture`, { run_id: this.runId });
      if (number < this.shown) return; // a later one came sooner
      this.shown = number;
      if (text !== this.text) {
        this.text = text;
        this.picture = pictureOf(text);
        this.shapes = Map.groupBy(this.picture.querySelectorAll("[data-node]"), nameOf);
      }
      this.problem = "";
    }, this);
  }

  /** The picture, with the node of the `selected` row, which is kept in view if the reader has chosen it. */
  view(rows = [], selected = null, isPinned = false) {
    if (this.problem) return h("p.field-problem", this.problem);
    if (this.facts === null) return h("div.empty", needsGraph());
    if (this.facts?.nodes.length > MOST_NODES) return this.counts(rows);
    if (!this.picture) return h("p.faint", "drawing …");
    return h("div.picture", {
      onshow: (element) => this.attach(element, selected, isPinned),
      onclick: (event) => this.click(event, rows),
    });
  }

  attach(element, selected, isPinned) {
    if (element.firstChild !== this.picture) element.replaceChildren(this.picture);
    const path = selected ? pathOf(selected) : "";
    const chosen = this.shapesOf(path);
    for (const shape of this.picture.querySelectorAll("[data-node]")) {
      shape.classList.toggle("chosen", chosen.includes(shape));
    }
    const isWanted = this.element !== element || (isPinned && this.path !== path);
    Object.assign(this, { element, path });
    if (isWanted && chosen.length) requestAnimationFrame(() => bringIntoView(chosen[0], element)); // when it is in the document
  }

  /** The shapes of the node with a path. Those of a branch that isn't a graph of its own have no branch in their names. */
  shapesOf(path) {
    const names = path.split("/").map((part, index, parts) => parts.slice(index).join("/"));
    return this.shapes.get(names.find((name) => this.shapes.has(name))) ?? [];
  }

  click(event, rows) {
    const shape = event.target.closest("[data-node]");
    if (!shape || !this.select) return;
    const found = rows.findLast((row) => this.shapesOf(pathOf(row)).includes(shape));
    if (found) this.select(found.id);
  }

  /** Of a graph that is too large to be drawn: how often each node has run. */
  counts(rows) {
    const visits = new Map();
    for (const row of rows) visits.set(row.label, (visits.get(row.label) ?? 0) + 1);
    const nodes = this.facts.nodes.map((node) => [node, visits.get(node) ?? 0]).sort((a, b) => b[1] - a[1]);
    const about = this.runId ? "; this is how often each has run" : "";
    return h(
      "div",
      h("p.faint", `${count(nodes.length)} nodes are too many for a picture${about}.`),
      h(
        "ul.node-counts",
        nodes
          .slice(0, MOST_NODES)
          .map(([node, times]) => h("li", { key: node }, this.runId && h("b", `${count(times)} `), node)),
      ),
      h("p.faint", `and ${count(nodes.length - MOST_NODES)} more`),
    );
  }
}

/** The node of a row as pictures name it: `papers/rate`, without the number of a branch of a map. */
function pathOf(row) {
  const branch = (row.branch ?? "").replace(/\[[^\]]*\]/g, "");
  return branch ? `${branch}/${row.label}` : row.label;
}

/** The node of a shape in the same way: `papers/rate`, not `plan//papers/rate`, which has where the map begins. */
function nameOf(shape) {
  return shape.dataset.node.replace(/\[[^\]]*\]|[^/]*\/\//g, "");
}

/** Scroll inside of an element, as little as is needed, until a shape can be seen. */
function bringIntoView(shape, element) {
  const [inner, outer] = [shape, element].map((each) => each.getBoundingClientRect());
  const by = (before, after) => Math.min(before - AROUND, 0) || Math.max(after + AROUND, 0);
  element.scrollBy(
    by(inner.left - outer.left, inner.right - outer.right),
    by(inner.top - outer.top, inner.bottom - outer.bottom),
  );
}

/** Buttons for several views of a thing, of which one is `chosen`. */
export function tabs(names, chosen, choose) {
  return h(
    "div.tabs",
    { role: "tablist" },
    names.map((name) =>
      h(
        "button",
        {
          key: name,
          role: "tab",
          "aria-selected": String(name === chosen),
          class: name === chosen ? "chosen" : "",
          onclick: () => choose(name),
        },
        name,
      ),
    ),
  );
}

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set("svg g path rect circle text tspan title desc".split(" "));
const ATTRIBUTES = new Set(
  "class d x y width height rx r cx cy dx viewBox transform data-node role aria-label".split(" "),
);

/** The elements of a picture. Throws an `Error` for what isn't one. */
function pictureOf(text) {
  const unstyled = text.replace(/<style>[^<]*<\/style>/, ""); // the page has the rules, and refuses styles inside
  const parsed = new DOMParser().parseFromString(unstyled, "image/svg+xml");
  if (parsed.documentElement.localName !== "svg") throw new Error("the picture can't be read");
  const picture = copyOf(parsed.documentElement);
  picture.style.minWidth = `${picture.getAttribute("width") * LEAST_SCALE}px`;
  return picture;
}

function copyOf(element) {
  const made = document.createElementNS(SVG, element.localName);
  for (const { name, value } of element.attributes) {
    if (ATTRIBUTES.has(name)) made.setAttribute(name, value);
  }
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) made.append(child.data);
    else if (child.nodeType === Node.ELEMENT_NODE && SHAPES.has(child.localName)) made.append(copyOf(child));
  }
  return made;
}

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
    const { signal } = this.request;
    await attempt(async () => {
      this.state = await get(runPath(this.id, "/state"), { step }, { signal });
    }, this);
  }

  /** Load a large value of the state that is shown: meanwhile, another one may be. */
  loadKey(key) {
    const { step } = this;
    const { values, large } = this.state;
    return attempt(async () => {
      const found = await get(runPath(this.id, "/state"), { step, key });
      putLarge(found.values, values, large);
    });
  }

  view(run) {
    const choose = (step) => {
      setQuery({ step });
      this.load(stepOf(step));
    };
    const typed = (draft) => {
      this.draft = draft; // which the run's newest step doesn't replace
    };
    const chosen = {
      min: 0,
      max: run.step,
      value: this.draft ?? String(this.step ?? run.step),
      oninput: (event) => typed(event.target.value),
      onblur: () => typed(null),
      onchange: (event) => choose(event.target.value),
    };
    return h(
      "section.state-view",
      h(
        "div.state-tools",
        h(
          "label",
          "after step ",
          h("input", { type: "number", ...chosen }),
        ),
        h("input", { type: "range", "aria-label": "step", ...chosen }),
        h("button.small", { disabled: this.step === null, onclick: () => choose(null) }, "newest"),
        this.state && copyJsonButton(this.state.values),
      ),
      this.problem && h("p.field-problem", this.problem),
      this.state &&
        !this.problem &&
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
const TYPES =
  "start step branches task_start task_skipped layer_start layer_end output progress skipped question pause answer deadline " +
  "message receive wait resume update retry caught sleep error fail cancel complete rollback";
const PLACE = new Set("type run_id cursor at began step node branch task layer large".split(" "));

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
    await attempt(async () => {
      const query = { after: this.next, type: this.type, limit: PAGE };
      const found = await get(runPath(this.id, "/events"), query, { signal });
      this.events = [...this.events, ...found.events];
      this.next = found.next;
      this.hasMore = found.more;
      this.problem = found.problem;
    }, this);
  }

  choose(type) {
    setQuery({ type });
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
          TYPES.split(" ").map((type) => h("option", { key: type, value: type }, type)),
        ),
      ),
      this.problem && h("p.field-problem", this.problem),
      h(
        "ol.events",
        this.events.map((event, index) => this.entry(event, this.events[index - 1]?.cursor)),
      ),
      this.hasMore
        ? h("button", { onclick: () => this.load() }, "later events")
        : !this.events.length && h("p.faint", "none"),
    );
  }

  /** Load the large values of an event, that comes after another one. */
  loadWhole(event, after) {
    return attempt(async () => {
      const found = await get(runPath(this.id, "/events"), { after, type: this.type, limit: 1, whole: true });
      Object.assign(event, found.events[0], { large: undefined });
    });
  }

  entry(event, before) {
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
      isOpen &&
        event.large &&
        h("button.small", { onclick: () => this.loadWhole(event, before) }, `${size(sum(event.large))}, show`),
    );
  }
}

export class ComparePage {
  title = "Compare";

  constructor({ query }) {
    this.tree = new TreeState();
    this.sides = [
      { id: query.get("a") ?? "", step: stepOf(query.get("a_step")), name: "a" },
      { id: query.get("b") ?? "", step: stepOf(query.get("b_step")), name: "b" },
    ];
  }

  start() {
    return attempt(async () => {
      await Promise.all(this.sides.map(async (side) => (side.run = await get(runPath(side.id)))));
      await this.load();
    }, this);
  }

  stop() {
    this.request?.abort();
  }

  /** Load how the states differ; what is under way is about other steps. */
  async load() {
    this.request?.abort();
    this.request = new AbortController();
    await attempt(async () => {
      const { changes, same } = await this.compared();
      Object.assign(this, { changes, same, problem: "" });
    }, this);
  }

  /** Load a change that was too large to be sent. */
  loadKey(key) {
    const { changes } = this;
    return attempt(async () => Object.assign(changes, (await this.compared(key)).changes), this);
  }

  compared(key = null) {
    const [a, b] = this.sides;
    const query = { with: b.id, step: a.step, with_step: b.step, key };
    return get(runPath(a.id, "/compare"), query, { signal: this.request.signal });
  }

  view() {
    return h(
      "main.page",
      h("h1", "Compare"),
      this.problem && h("p.field-problem", { role: "alert" }, this.problem),
      h(
        "div.compare-sides",
        this.sides.map((side) => side.run && this.side(side)),
      ),
      this.changes &&
        h(
          "section.panel",
          h("h2", "From the first to the second"),
          diffView({ changes: this.changes, load: (key) => this.loadKey(key), tree: this.tree }),
        ),
      this.same?.length > 0 && h("p.faint", `The same in both: ${this.same.join(", ")}`),
      codePanel(compareCode(this.sides)),
    );
  }

  side(side) {
    const { run } = side;
    const choose = (event) => {
      side.step = stepOf(event.target.value);
      setQuery({ [`${side.name}_step`]: side.step === null ? null : String(side.step) });
      this.load();
    };
    return h(
      "section",
      { key: side.name, class: "panel" },
      h(
        "h2",
        h("a", { href: pageUrl("runs", run.run_id), title: run.run_id }, shortId(run.run_id)),
        " ",
        statusLabel(run.status),
      ),
      h(
        "p.faint",
        run.graph,
        " · created ",
        timeView(run.created),
        isOver(run) ? ` · ${span(run.updated - run.created)}` : "",
        ` · ${count(run.step, "step")}`,
      ),
      h("p", whatOf(run)),
      h(
        "label",
        "state after step ",
        h("input", {
          type: "number",
          min: 0,
          max: run.step,
          placeholder: String(run.step),
          value: side.step === null ? "" : String(side.step),
          onchange: choose,
        }),
      ),
    );
  }
}

/** The bytes of all values. */
function sum(sizes) {
  return Object.values(sizes).reduce((total, each) => total + each, 0);
}

/** The step that a text names; null if it names none. */
export function stepOf(text) {
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}
