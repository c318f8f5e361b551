/** A new run that starts where this one was after a step, with edits of its state. */

import { get, parseAsWritten, post, runPath, textOf } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { go, pageUrl } from "../core/router.js";
import { actionForm, forkCode, needsGraph, textField } from "../parts/code.js";
import { attempt, closeIfOpen, openDialog, say } from "../parts/dialog.js";
import { size } from "../parts/labels.js";

const AS_WRITTEN = { parse: parseAsWritten };

/**
 * Open the dialog, with the state of a `branch` if there is one. `knowsGraph` says whether the server has the code of the
 * graph, which edits and new runs need.
 */
export function openForkDialog(run, options) {
  const work = new ForkWork(run, options);
  openDialog({ title: `Fork ${run.run_id}`, view: work.view, wide: true });
  work.load();
}

class ForkWork {
  constructor(run, { step, branch, knowsGraph }) {
    this.run = run;
    this.step = step ?? run.step;
    this.branch = branch;
    this.knowsGraph = knowsGraph;
    this.newId = "";
    this.begin = true;
    this.problem = "";
    this.original = null;
    this.edited = {};
    this.large = {};
    this.foreign = {};
    this.incomplete = {};
    this.added = { key: "", text: "" };
    this.view = this.view.bind(this);
  }

  /** Load the state after the step that is chosen. What was edited before stays. */
  async load() {
    const { step } = this;
    this.original = null;
    this.problem = "";
    refresh();
    await attempt(async () => {
      const found = await this.stateAfter(step);
      if (step !== this.step) return;
      this.original = Object.fromEntries(Object.entries(found.values).map(([key, value]) => [key, textOf(value, 2)]));
      this.large = found.large;
      this.foreign = found.not_json;
      this.incomplete = found.incomplete;
    }, this);
  }

  /** The state that is edited: that of the branch, unless it isn't open then. */
  async stateAfter(step) {
    const path = runPath(this.run.run_id, "/state");
    try {
      return await get(path, { step, branch: this.branch }, AS_WRITTEN);
    } catch (error) {
      if (!this.branch || error.status !== 400) throw error;
      this.branch = "";
      return get(path, { step }, AS_WRITTEN);
    }
  }

  loadLarge(key) {
    const { step, branch } = this;
    return attempt(async () => {
      const found = await get(runPath(this.run.run_id, "/state"), { step, branch, key }, AS_WRITTEN);
      if (step !== this.step || !this.original) return;
      this.original[key] = textOf(found.values[key], 2);
      Object.assign(this.foreign, found.not_json);
      Object.assign(this.incomplete, found.incomplete);
      delete this.large[key];
    }, this);
  }

  /** The values that were edited. A text that isn't JSON is given to `refuse`, with its key and the `Error`. */
  update(refuse) {
    const changed = Object.entries(this.edited).filter(([key, text]) => text !== this.original?.[key]);
    if (this.added.key.trim()) changed.push([this.added.key.trim(), this.added.text]);
    const pairs = [];
    for (const [key, text] of changed) {
      try {
        pairs.push([key, parseAsWritten(text)]);
      } catch (error) {
        refuse(key, error);
      }
    }
    return Object.fromEntries(pairs);
  }

  view() {
    if (!this.knowsGraph) return needsGraph();
    return actionForm({
      work: this,
      title: "Fork",
      about: [
        "The new run begins with the state that this one had after step ",
        this.stepInput(),
        ". Finished steps don't run again.",
        this.branch && ` You see the state of ${this.branch}. Edits reach all branches that have not ended.`,
      ],
      ask: [
        this.original ? this.editors() : !this.problem && h("p.faint", "loading the state …"),
        textField("id of the new run", this, "newId", { placeholder: "a new one" }),
        h(
          "label.check",
          h("input", {
            type: "checkbox",
            checked: this.begin,
            onchange: (event) => {
              this.begin = event.target.checked;
              refresh();
            },
          }),
          " hand it to the workers at once",
        ),
      ],
      code: this.code(),
      isReady: this.original !== null,
      action: () => this.start(),
    });
  }

  stepInput() {
    return h("input", {
      type: "number",
      class: "step-input",
      "aria-label": "step",
      min: 0,
      max: this.run.step,
      value: String(this.step),
      onchange: (event) => {
        this.step = Number(event.target.value);
        this.load();
      },
    });
  }

  editors() {
    return h(
      "div.fields",
      Object.keys({ ...this.original, ...this.edited })
        .sort()
        .map((key) => this.editor(key)),
      Object.entries(this.large).map(([key, bytes]) =>
        h(
          "div",
          { key, class: "field" },
          h("span.tree-key", key),
          h("button", { type: "button", class: "small", onclick: () => this.loadLarge(key) }, `${size(bytes)}, show`),
        ),
      ),
      this.adding(),
    );
  }

  editor(key) {
    const text = this.edited[key] ?? this.original[key];
    const isChanged = text !== this.original[key];
    const reason = this.incomplete[key];
    return h(
      "label",
      { key, class: isChanged ? "field edited" : "field" },
      h(
        "span.tree-key",
        key,
        this.foreign[key] && h("span.faint", ` ${this.foreign[key]}: an edited value is plain JSON`),
        reason && h("span.faint", ` can't be edited: ${reason}`),
        isChanged && h("span.faint", " edited"),
      ),
      h("textarea.code-input", {
        rows: Math.min(text.split("\n").length, 10),
        spellcheck: "false",
        value: text,
        name: key,
        readonly: Boolean(reason),
        oninput: (event) => {
          this.edited[key] = event.target.value;
          refresh();
        },
      }),
    );
  }

  adding() {
    return h(
      "div.add-key",
      textField("another key", this.added, "key"),
      textField("its value as JSON", this.added, "text"),
    );
  }

  code() {
    const update = this.update(() => {}); // what isn't JSON yet is left out
    return forkCode(this.run.run_id, this.step, update, this.newId.trim(), this.begin);
  }

  async start() {
    const id = this.newId.trim();
    const body = { step: this.step, update: this.update(refuse), begin: this.begin, ...(id && { new_run_id: id }) };
    const made = await post(runPath(this.run.run_id, "/fork"), body);
    const isHere = closeIfOpen(this.view);
    say(`forked as ${made.run_id}`, {
      href: pageUrl("compare", { a: this.run.run_id, b: made.run_id }),
      text: "compare",
    });
    if (isHere) go(pageUrl("runs", made.run_id));
  }
}

function refuse(key, error) {
  throw new Error(`${key} isn't JSON (a text needs quotes): ${error.message}`);
}
