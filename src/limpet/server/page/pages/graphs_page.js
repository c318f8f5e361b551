/** The graphs whose code the server has. */

import { get } from "../core/api.js";
import { h } from "../core/dom.js";
import { count } from "../core/format.js";
import { pageUrl } from "../core/router.js";
import { refresh } from "../core/screen.js";
import { codeBlock } from "../parts/code_panel.js";
import { complain } from "../parts/notices.js";

export class GraphsPage {
  title = "Graphs";

  async start() {
    try {
      this.graphs = (await get("/graphs")).graphs;
    } catch (error) {
      complain(error);
    }
    refresh();
  }

  stop() {}

  view() {
    return h("main", { class: "page" }, h("h1", {}, "Graphs"), this.graphs && (this.graphs.length ? this.list() : this.nothing()));
  }

  list() {
    return h(
      "ul",
      { class: "cards" },
      this.graphs.map((graph) =>
        h(
          "li",
          { key: graph.name },
          h(
            "a",
            { class: "card", href: pageUrl("graphs", graph.name) },
            h("b", {}, graph.name),
            h("span", { class: "faint" }, `${count(graph.nodes.length, "node")} · ${count(Object.keys(graph.keys).length, "key")}`),
            h("span", { class: "card-nodes" }, graph.nodes.slice(0, 8).join(" · ")),
          ),
        ),
      ),
    );
  }

  nothing() {
    return h(
      "div",
      { class: "empty" },
      h("p", {}, "The server has the code of no graph. Its runs are shown all the same; to draw, start and fork them, name it:"),
      codeBlock("Command line", "limpet serve --graph MODULE:GRAPH"),
    );
  }
}
