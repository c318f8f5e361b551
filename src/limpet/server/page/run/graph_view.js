/** The picture of a graph, marked by how far a run has come; a click on a node selects its newest step. */

import { getText } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { count } from "../parts/labels.js";

/** Nodes above which no picture is drawn. */
const MOST_NODES = 1000;

export class GraphView {
  constructor({ graph, runId = null, select = null }) {
    this.graph = graph;
    this.runId = runId;
    this.select = select;
    this.picture = null;
    this.problem = "";
    this.selected = "";
  }

  /** Load the picture; `facts` are those of the graph, null if the server doesn't know it. */
  async load(facts) {
    this.facts = facts;
    if (!facts) return;
    if (facts.nodes.length > MOST_NODES) return;
    try {
      const text = await getText(`/graphs/${encodeURIComponent(this.graph)}/picture`, { run_id: this.runId });
      if (text !== this.text) {
        this.text = text;
        this.picture = pictureOf(text);
        this.problem = "";
      }
    } catch (error) {
      this.problem = error.message;
    }
    refresh();
  }

  view(rows = [], selected = null) {
    if (this.problem) return h("p.field-problem", this.problem);
    if (this.facts === null) return this.unknown();
    if (this.facts?.nodes.length > MOST_NODES) return this.counts(rows);
    if (!this.picture) return h("p.faint", "drawing …");
    return h("div.picture", {
      onshow: (element) => this.attach(element, selected),
      onclick: (event) => this.click(event, rows),
    });
  }

  unknown() {
    return h(
      "div.empty",
      h("p", "The server doesn't have the code of this graph, so it can't draw it."),
      h("p", h("code", "limpet serve --graph MODULE:GRAPH")),
    );
  }

  attach(element, selected) {
    if (element.firstChild !== this.picture) element.replaceChildren(this.picture);
    const wanted = selected ? pathOf(selected) : null;
    for (const shape of this.picture.querySelectorAll("[data-node]")) {
      const isChosen = wanted !== null && sameNode(shape.dataset.node, wanted);
      shape.classList.toggle("chosen", isChosen);
    }
  }

  click(event, rows) {
    const shape = event.target.closest("[data-node]");
    if (!shape || !this.select) return;
    const node = shape.dataset.node;
    const found = rows.findLast((row) => sameNode(node, pathOf(row)));
    if (found) this.select(found.id);
  }

  /** Of a graph that is too large to be drawn: how often each node has run. */
  counts(rows) {
    const visits = new Map();
    for (const row of rows) visits.set(row.label, (visits.get(row.label) ?? 0) + 1);
    const nodes = this.facts.nodes.map((node) => [node, visits.get(node) ?? 0]).sort((a, b) => b[1] - a[1]);
    return h(
      "div",
      h("p.faint", `${count(nodes.length)} nodes are too many for a picture; this is how often each has run.`),
      h(
        "ul.node-counts",
        nodes.slice(0, MOST_NODES).map(([node, times]) => h("li", { key: node }, h("b", count(times)), ` ${node}`)),
      ),
    );
  }
}

/** The node of a row as pictures name it: `papers/rate`, without the number of a branch of a map. */
function pathOf(row) {
  const branch = (row.branch ?? "").replace(/\[[^\]]*\]/g, "");
  return branch ? `${branch}/${row.label}` : row.label;
}

function sameNode(shape, path) {
  const plain = shape.replace(/\[[^\]]*\]/g, "");
  return plain === path || plain.endsWith(`/${path}`) || path.endsWith(`/${plain}`);
}

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "g", "path", "rect", "circle", "text", "tspan", "title", "desc"]);
const ATTRIBUTES = new Set([
  "class",
  "d",
  "x",
  "y",
  "width",
  "height",
  "rx",
  "r",
  "cx",
  "cy",
  "dx",
  "viewBox",
  "transform",
  "data-node",
  "role",
  "aria-label",
]);

/** The elements of a picture. Throws an `Error` for what isn't one. */
export function pictureOf(text) {
  const unstyled = text.replace(/<style>[^<]*<\/style>/, ""); // the page has the rules, and refuses styles inside
  const parsed = new DOMParser().parseFromString(unstyled, "image/svg+xml");
  if (parsed.documentElement.localName !== "svg") throw new Error("the picture can't be read");
  return copyOf(parsed.documentElement);
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
