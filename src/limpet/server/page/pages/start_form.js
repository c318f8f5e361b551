/** A form that starts a run of a graph, made from the schema of its state. */

import { post } from "../core/api.js";
import { h } from "../core/dom.js";
import { go, pageUrl } from "../core/router.js";
import { refresh } from "../core/screen.js";
import { codePanel } from "../parts/code_panel.js";
import { startCode } from "../parts/commands.js";
import { say } from "../parts/notices.js";
import { EMPTY, fieldFor, JsonField } from "../parts/schema_form.js";

export class StartForm {
  constructor(graph) {
    this.graph = graph;
    this.id = "";
    this.tags = "";
    this.queue = "";
    this.problem = "";
    this.isWorking = false;
    const schema = graph.schema ?? { type: "object", properties: propertiesOf(graph.keys) };
    const hasKeys = Object.keys(schema.properties ?? {}).length > 0;
    this.field = hasKeys ? fieldFor(schema, { root: schema }) : new JsonField({ name: "input", schema: { type: "object" }, initial: {}, isRequired: true });
  }

  view() {
    return h(
      "form",
      { class: "start-form", onsubmit: (event) => this.start(event) },
      this.field.view(),
      h(
        "details",
        {},
        h("summary", {}, "id, tags and queue"),
        this.input("id", "id of the run", "the same id and input twice are one run"),
        this.input("tags", "tags", "separated by commas"),
        this.input("queue", "queue", "default"),
      ),
      this.problem && h("p", { class: "field-problem", role: "alert" }, this.problem),
      h("button", { class: "primary", disabled: this.isWorking }, this.isWorking ? "starting …" : "Start a run"),
      codePanel(startCode(this.graph.name, this.input_ ?? {}, this.id)),
    );
  }

  input(name, label, hint) {
    return h(
      "label",
      { class: "field" },
      label,
      h("input", { value: this[name], placeholder: hint, autocomplete: "off", oninput: (event) => ((this[name] = event.target.value), refresh()) }),
    );
  }

  async start(event) {
    event.preventDefault();
    this.problem = "";
    try {
      const input = this.field.read();
      this.input_ = input === EMPTY ? {} : input;
      this.isWorking = true;
      refresh();
      const tags = this.tags.split(",").map((each) => each.trim()).filter(Boolean);
      const body = { input: this.input_, tags, ...(this.id && { run_id: this.id }), ...(this.queue && { queue: this.queue }) };
      const run = await post(`/graphs/${encodeURIComponent(this.graph.name)}/runs`, body);
      say(`started ${run.run_id}`);
      go(pageUrl("runs", run.run_id));
    } catch (error) {
      this.problem = error.message;
    }
    this.isWorking = false;
    refresh();
  }
}

function propertiesOf(keys) {
  const known = Object.entries(keys).map(([key, { type }]) => [key, type === "any" ? {} : { type }]);
  return Object.fromEntries(known);
}
