/** The whole state of a run after a step, as a tree. */

import { get, runPath } from "../core/api.js";
import { h } from "../core/dom.js";
import { textOf } from "../core/exact_json.js";
import { refresh } from "../core/screen.js";
import { codePanel } from "../parts/code_panel.js";
import { stateCode } from "../parts/commands.js";
import { copyButton } from "../parts/copy.js";
import { stateTree, TreeState } from "../parts/state_tree.js";

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
      "section",
      { class: "state-view" },
      h(
        "div",
        { class: "state-tools" },
        h("label", {}, "after step ", h("input", { type: "number", min: 0, max: run.step, value: String(step), onchange: choose })),
        h("input", { type: "range", "aria-label": "step", min: 0, max: run.step, value: String(step), onchange: choose }),
        h("button", { class: "small", disabled: this.step === null, onclick: () => this.load(null) }, "newest"),
        this.state && copyButton("copy JSON", () => textOf(this.state.values, 2), "copied as JSON"),
      ),
      this.problem && h("p", { class: "field-problem" }, this.problem),
      this.state && stateTree({ values: this.state.values, large: this.state.large, load: (key) => this.loadKey(key), tree: this.tree }),
      codePanel(stateCode(run.run_id, this.step)),
    );
  }
}
