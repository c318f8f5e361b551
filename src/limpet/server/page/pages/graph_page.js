/** One graph: its picture, the keys of its state, its newest runs, and a form that starts one. */

import { get } from "../core/api.js";
import { h } from "../core/dom.js";
import { pageUrl } from "../core/router.js";
import { refresh } from "../core/screen.js";
import { GraphView } from "../run/graph_view.js";
import { runsTable } from "../runs/runs_table.js";
import { StartForm } from "./start_form.js";

const RECENT = 10;

export class GraphPage {
  constructor({ parts, about }) {
    this.about = about;
    this.name = parts[1];
    this.title = this.name;
    this.picture = new GraphView({ graph: this.name });
    this.runs = [];
  }

  async start() {
    const isKnown = this.about.graphs.includes(this.name);
    try {
      [this.graph, { runs: this.runs }] = await Promise.all([
        isKnown ? get(`/graphs/${encodeURIComponent(this.name)}`) : null,
        get("/runs", { graph: this.name, limit: RECENT }),
      ]);
      if (this.graph && !this.about.read_only) this.form = new StartForm(this.graph);
      await this.picture.load(this.graph);
    } catch (error) {
      this.problem = error.message;
    }
    refresh();
  }

  stop() {}

  view() {
    const all = `${pageUrl("runs")}?q=${encodeURIComponent(`graph:"${this.name}"`)}`;
    return h(
      "main",
      { class: "page graph-page" },
      h("h1", {}, this.name),
      this.problem && h("p", { class: "field-problem" }, this.problem),
      h(
        "div",
        { class: "graph-columns" },
        h("section", { class: "panel" }, this.picture.view()),
        h("div", {}, this.form && h("section", { class: "panel" }, h("h2", {}, "Start a run"), this.form.view()), this.graph && this.keys()),
      ),
      h("h2", {}, "Newest runs ", h("a", { class: "faint", href: all }, "all")),
      this.runs.length ? runsTable({ runs: this.runs }) : h("p", { class: "faint" }, "none"),
    );
  }

  keys() {
    const keys = Object.entries(this.graph.keys);
    if (!keys.length) return null;
    return h(
      "section",
      { class: "panel" },
      h("h2", {}, "State"),
      h(
        "table",
        { class: "plain-table" },
        h("tbody", {}, keys.map(([key, { type, secret }]) => h("tr", { key }, h("td", { class: "tree-key" }, key), h("td", { class: "faint" }, secret ? `${type}, secret` : type)))),
      ),
    );
  }
}
