/** Two runs side by side: what is known of each, and how their states differ. */

import { get, runPath } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { pageUrl, setQuery } from "../core/router.js";
import { count, shortId, span, statusLabel, timeView } from "../parts/labels.js";
import { diffView, TreeState } from "../parts/values.js";
import { isOver, whatOf } from "../runs/lists.js";

export class ComparePage {
  title = "Compare";

  constructor({ query }) {
    this.tree = new TreeState();
    this.sides = [
      { id: query.get("a") ?? "", step: stepOf(query.get("a_step")), name: "a" },
      { id: query.get("b") ?? "", step: stepOf(query.get("b_step")), name: "b" },
    ];
  }

  async start() {
    try {
      await Promise.all(this.sides.map(async (side) => (side.run = await get(runPath(side.id)))));
      await this.load();
    } catch (error) {
      this.problem = error.message;
    }
    refresh();
  }

  stop() {}

  async load(key = null) {
    const [a, b] = this.sides;
    try {
      const found = await get(runPath(a.id, "/compare"), { with: b.id, step: a.step, with_step: b.step, key });
      this.changes = key === null ? found.changes : { ...this.changes, ...found.changes };
      if (key === null) this.same = found.same;
    } catch (error) {
      this.problem = error.message;
    }
    refresh();
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
          h("h2", "From the left to the right"),
          diffView({ changes: this.changes, load: (key) => this.load(key), tree: this.tree }),
        ),
      this.same?.length > 0 && h("p.faint", `The same in both: ${this.same.join(", ")}`),
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

function stepOf(text) {
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}
