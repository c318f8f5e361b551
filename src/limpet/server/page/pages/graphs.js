/** The graphs whose code the server has; one graph with its picture, its state and runs; and a form that starts one. */

import { get, post } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { go, pageUrl } from "../core/reader.js";
import { codeBlock, codePanel, startCode, textField } from "../parts/code.js";
import { attempt, say } from "../parts/dialog.js";
import { EMPTY, fieldFor, JsonField } from "../parts/forms.js";
import { count } from "../parts/labels.js";
import { GraphView } from "../run/views.js";
import { termText } from "../runs/filter.js";
import { runsTable } from "../runs/lists.js";

const RETRY = 5000;

/** A page that is loaded once, and again after a while if that fails. */
class LoadedPage {
  async start() {
    this.problem = "";
    await attempt(() => this.load(), this);
    if (this.problem && !this.isLeft) this.timer = setTimeout(() => this.start(), RETRY);
  }

  stop() {
    this.isLeft = true;
    clearTimeout(this.timer);
  }
}

export class GraphsPage extends LoadedPage {
  title = "Graphs";

  async load() {
    this.graphs = (await get("/graphs")).graphs;
  }

  view() {
    return h(
      "main.page",
      h("h1", "Graphs"),
      this.problem && h("p.field-problem", this.problem),
      this.graphs && (this.graphs.length ? this.list() : this.nothing()),
    );
  }

  list() {
    return h(
      "ul.cards",
      this.graphs.map((graph) =>
        h(
          "li",
          { key: graph.name },
          h(
            "a.card",
            { href: pageUrl("graphs", graph.name) },
            h("b", graph.name),
            h("span.faint", `${count(graph.nodes.length, "node")} · ${count(Object.keys(graph.keys).length, "key")}`),
            h("span.card-nodes", graph.nodes.slice(0, 8).join(" · "), graph.nodes.length > 8 && " …"),
          ),
        ),
      ),
    );
  }

  nothing() {
    return h(
      "div.empty",
      h(
        "p",
        "The server has the code of no graph. Its runs are shown all the same; to draw, start and fork them, name it:",
      ),
      codeBlock("Command line", "limpet serve --graph MODULE:GRAPH"),
    );
  }
}

const RECENT = 10;

export class GraphPage extends LoadedPage {
  constructor({ parts, about }) {
    super();
    this.about = about;
    this.name = parts[1];
    this.title = this.name;
    this.picture = new GraphView({ graph: this.name });
    this.runs = [];
  }

  async load() {
    const isKnown = this.about.graphs.includes(this.name);
    [this.graph, { runs: this.runs }] = await Promise.all([
      isKnown ? get(`/graphs/${encodeURIComponent(this.name)}`) : null,
      get("/runs", { graph: this.name, limit: RECENT }),
    ]);
    if (this.graph && !this.about.read_only) this.form = new StartForm(this.graph);
    await this.picture.load(this.graph);
  }

  view() {
    const all = pageUrl("runs", { q: termText("graph", this.name) });
    return h(
      "main.page.graph-page",
      h("h1", this.name),
      this.problem && h("p.field-problem", this.problem),
      h(
        "div.graph-columns",
        h("section.panel", this.picture.view()),
        h("div", this.form && h("section.panel", h("h2", "Start a run"), this.form.view()), this.graph && this.keys()),
      ),
      h("h2", "Newest runs ", h("a.faint", { href: all }, "all")),
      this.runs.length ? runsTable({ runs: this.runs }) : h("p.faint", "none"),
    );
  }

  keys() {
    const keys = Object.entries(this.graph.keys);
    if (!keys.length) return null;
    return h(
      "section.panel",
      h("h2", "State"),
      h(
        "table.plain-table",
        h(
          "tbody",
          keys.map(([key, { type, secret }]) =>
            h("tr", { key }, h("td.tree-key", key), h("td.faint", secret ? `${type}, secret` : type)),
          ),
        ),
      ),
    );
  }
}

class StartForm {
  constructor(graph) {
    this.graph = graph;
    this.id = "";
    this.tags = "";
    this.queue = "";
    this.problem = "";
    this.isWorking = false;
    const { schema } = graph;
    const hasKeys = Object.keys(schema.properties ?? {}).length > 0;
    this.field = hasKeys
      ? fieldFor(schema, { root: schema })
      : new JsonField({ name: "input", schema: { type: "object" }, initial: {}, isRequired: true });
  }

  view() {
    const peeked = this.field.peek();
    return h(
      "form.start-form",
      { onsubmit: (event) => this.start(event) },
      this.field.view(),
      h(
        "details",
        h("summary", "id, tags and queue"),
        textField("id of the run", this, "id", { placeholder: "the same id and input twice are one run" }),
        textField("tags", this, "tags", { placeholder: "separated by commas" }),
        textField("queue", this, "queue", { placeholder: "default" }),
      ),
      this.problem && h("p.field-problem", { role: "alert" }, this.problem),
      h("button.primary", { disabled: this.isWorking }, this.isWorking ? "starting …" : "Start a run"),
      codePanel(startCode(this.graph.name, peeked === EMPTY ? {} : peeked, this.options())),
    );
  }

  options() {
    const tags = this.tags.split(",").map((each) => each.trim());
    return { id: this.id.trim(), queue: this.queue.trim(), tags: tags.filter(Boolean) };
  }

  async start(event) {
    event.preventDefault();
    if (this.isWorking) return;
    this.problem = "";
    const { pathname } = location;
    let input;
    try {
      input = this.field.read();
    } catch {
      return; // the field says what is wrong
    }
    await attempt(async () => {
      const given = input === EMPTY ? {} : input;
      this.isWorking = true;
      refresh();
      const { id, queue, tags } = this.options();
      const body = { input: given, tags, ...(id && { run_id: id }), ...(queue && { queue }) };
      const run = await post(`/graphs/${encodeURIComponent(this.graph.name)}/runs`, body);
      say(`started ${run.run_id}`);
      if (location.pathname === pathname) go(pageUrl("runs", run.run_id));
    }, this);
    this.isWorking = false;
    refresh();
  }
}
