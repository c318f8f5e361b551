/** The head of a run: what it is, how it is, and what can be done with it, with the dialogs that ask for what is needed. */

import { download, get, parseAsWritten, post, remove, runPath, textOf } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { go, pageUrl, ROOT, settings } from "../core/reader.js";
import {
  actionForm,
  answerCode,
  confirm,
  copy,
  copyButton,
  forkCode,
  needsGraph,
  rollbackCode,
  runCode,
  sendCode,
  textField,
} from "../parts/code.js";
import { attempt, closeIfOpen, openDialog, say } from "../parts/dialog.js";
import { JsonField, nameInput } from "../parts/forms.js";
import { count, shortId, size, span, statusLabel, timeView } from "../parts/labels.js";
import { termText } from "../runs/filter.js";
import { isOver } from "../runs/lists.js";

/** Whether a run waits for a worker to claim it. */
export function isUnclaimed(run) {
  return run.status === "queued" || run.status === "abandoned";
}

/** What a run that has stopped needs. */
const PRIMARY = new Set(["approve", "retry", "resume"]);

/** The head. `around` has its child runs, and why no worker takes it; `actions` opens the dialogs. */
export function runHeader(run, around, actions, isReadOnly) {
  return h(
    "header.run-header",
    h(
      "div.run-title",
      h("span.faint", h("a.faint", { href: pageUrl("graphs", run.graph) }, run.graph), "\u2003/"),
      h(
        "h1",
        { title: run.run_id },
        h(
          "button.id",
          { title: "copy the id", onclick: () => copy(run.run_id, "copied the id") },
          shortId(run.run_id, 40),
        ),
      ),
      statusLabel(run.status),
    ),
    h("div.run-facts", facts(run, around)),
    h("div.run-actions", buttons(run, actions, isReadOnly)),
  );
}

function facts(run, { children, unserved }) {
  const parts = [
    h("span", isOver(run) ? "ended " : "changed ", timeView(run.updated)),
    h("span", "created ", timeView(run.created)),
    isOver(run) && h("span", span(run.updated - run.created)),
    h("span", run.status === "thread" ? run.reason : count(run.step, "step")),
    run.queue !== "default" && h("span", `queue ${run.queue}`),
    run.held_by && run.status === "running" && h("span", { title: run.held_by }, `by ${shortId(run.held_by, 40)}`),
    unserved && isUnclaimed(run) && h("span.unserved", `stays ${run.status}: ${unserved.reason}`),
    ["sleeping", "retrying"].includes(run.status) && h("span", "due ", timeView(run.due)),
    run.deadline && !isOver(run) && h("span", "deadline ", timeView(run.deadline)),
    run.parent && h("span", "started by ", runLink(run.parent)),
    run.forked_from && h("span", "forked from ", runLink(originOf(run))),
    children?.runs.length > 0 &&
      h(
        "a",
        { href: pageUrl("runs", { q: termText("parent", run.run_id) }) },
        count(children.runs.length, "child run", children.next),
      ),
    ...run.tags.map((tag) => h("a.tag", { href: pageUrl("runs", { q: termText("tag", tag) }) }, tag)),
  ];
  return parts.filter(Boolean);
}

function runLink(id) {
  return h("a", { href: pageUrl("runs", id), title: id }, shortId(id));
}

function buttons(run, actions, isReadOnly) {
  const save = () => attempt(() => download(runPath(run.run_id, "/export"), `${run.run_id}.run`));
  if (isReadOnly) return h("button", { onclick: save }, "export");
  const { main, more } = actionsFor(run);
  return [
    main.map((name) =>
      h("button", { key: name, class: PRIMARY.has(name) ? "primary" : "", onclick: () => actions[name]() }, name),
    ),
    h(
      "details.menu",
      { onkeydown: closeMenuByKey, onfocusout: closeMenuBehind },
      h("summary.button", { "aria-label": "more actions" }, "⋯"),
      h(
        "div.menu-items",
        { onclick: (event) => event.currentTarget.parentElement.removeAttribute("open") },
        more.map((name) => h("button", { key: name, onclick: () => actions[name]() }, name)),
        h("button", { onclick: save }, "export"),
      ),
    ),
  ];
}

/** The names of the actions that a run allows: those that are shown, and those in the menu. */
export function actionsFor(run) {
  // A thread of another library, which continues it.
  if (run.status === "thread") return { main: [], more: ["delete"] };
  const isOpen = run.stored_status === "running" || run.stored_status === "paused";
  const stopped = ["failed", "quarantined", "cancelled"].includes(run.status);
  const isLeft = run.status === "paused" && !run.questions.length && !run.waits_for_approval;
  const main = [];
  if (run.waits_for_approval) main.push("approve");
  if (stopped) main.push("retry");
  if (isLeft) main.push("resume");
  main.push("fork");
  if (isOpen) main.push("cancel");
  const more = ["compare"];
  if (isOpen) more.push("send");
  if (run.questions.length) more.push("link");
  more.push("rollback", "delete");
  return { main, more };
}

/** The actions of a run: each asks what it needs, does it, and calls `whenDone`. */
export class RunActions {
  constructor({ run, knowsGraph, step, fork, whenDone }) {
    this.now = run;
    this.knowsGraph = knowsGraph;
    this.step = step;
    this.fork = fork;
    this.whenDone = whenDone;
  }

  get run() {
    return this.now();
  }

  get id() {
    return this.run.run_id;
  }

  post(rest, body) {
    return post(runPath(this.id, rest), body);
  }

  /** Ask, do it, and say what was done. */
  confirm(done, options) {
    const whenDone = () => {
      say(`${this.id}: ${done}`);
      this.whenDone();
    };
    confirm({ whenDone, ...options });
  }

  retry(title = "Retry") {
    this.confirm("handed to the workers", {
      title,
      about: "The workers continue the run from where it stopped. Finished steps don't run again.",
      code: () => runCode("retry", this.id),
      action: () => this.post("/retry"),
    });
  }

  resume() {
    this.retry("Resume");
  }

  approve() {
    this.confirm("approved", {
      title: "Approve",
      about: this.run.reason ?? "The run continues.",
      ask: nameInput,
      code: () => answerCode(this.id, null, null, settings.name.trim()),
      action: () => this.post("/answer", settings.name.trim() ? { by: settings.name.trim() } : {}),
    });
  }

  cancel() {
    const about = "Nothing new begins. What was saved stays, and the run can be retried.";
    const options = { title: "Cancel run", tone: "danger", about, code: () => runCode("cancel", this.id) };
    this.confirm("cancelled", { ...options, action: () => this.post("/cancel") });
  }

  delete() {
    const about = "The run and its journal are deleted for ever.";
    const options = { title: "Delete run", tone: "danger", about, code: () => runCode("delete", this.id) };
    this.confirm("", { ...options, action: () => remove(runPath(this.id)), whenDone: () => go(pageUrl("runs")) });
  }

  rollback() {
    if (!this.knowsGraph()) {
      openDialog({ title: "Roll back", view: needsGraph });
      return;
    }
    const given = { step: String(this.step() ?? Math.max(this.run.step - 1, 0)) };
    const about = "The run is set back to where it was after a step, and paused. Its history stays.";
    this.confirm("rolled back", {
      title: "Roll back",
      tone: "danger",
      about,
      ask: () => textField("after step", given, "step", { type: "number", min: 0, max: this.run.step, required: true }),
      code: () => rollbackCode(this.id, Number(given.step)),
      action: () => this.post("/rollback", { step: Number(given.step) }),
    });
  }

  send() {
    const [wanted] = this.run.waits.filter((wait) => wait.kind === "message");
    const given = { name: wanted?.name ?? "" };
    const value = new JsonField({ name: "value", schema: {}, isRequired: true });
    const read = () => {
      if (!given.name.trim()) throw new Error("a message needs a name");
      return { name: given.name.trim(), value: value.value() };
    };
    this.confirm("has the message", {
      title: "Send",
      about: "The message waits for the run, until a node receives it.",
      ask: () => [textField("name", given, "name"), value.view()],
      code: () => sendCode(this.id, given.name || "NAME", value.text ? value.peek() : "VALUE"),
      action: () => this.post("/send", read()),
    });
  }

  compare() {
    const other = { id: originOf(this.run) };
    confirm({
      title: "Compare",
      about: "Their states, side by side.",
      ask: () => textField("the id of the other run", other, "id", { required: true }),
      action: () => get(runPath(other.id.trim())),
      whenDone: (run) => go(pageUrl("compare", { a: run.run_id, b: this.id })),
    });
  }

  /** A link with which one question can be answered, for a phone or for a colleague. */
  link() {
    const { questions } = this.run;
    const given = { question: 0, name: "", expires: "7d" };
    const choose = (event) => {
      given.question = Number(event.target.value);
      given.made = null;
      refresh();
    };
    confirm({
      title: "Make link",
      about: "With this link a person can answer this one question, and nothing else. It needs no token.",
      ask: () => [
        questions.length > 1 &&
          h(
            "select",
            { "aria-label": "the question", value: String(given.question), onchange: choose },
            questions.map((each, index) => h("option", { key: index, value: String(index) }, each.prompt)),
          ),
        h("p.prompt", questions[given.question].prompt),
        textField("for whom", given, "name", { placeholder: "a name, for the history" }),
        textField("valid for", given, "expires"),
        given.made && madeLink(given.made),
      ],
      action: async () => {
        given.made = await this.post("/link", {
          question: questions[given.question].id,
          expires: given.expires,
          ...(given.name && { name: given.name }),
        });
      },
      stays: true,
    });
  }
}

/** The run that a run was forked from, if it was. */
function originOf(run) {
  return (run.forked_from ?? "").replace(/@\d+$/, "");
}

function madeLink({ path, expires }) {
  const url = `${location.origin}${ROOT}${path}`;
  return h(
    "div.made-link",
    h("input", { readonly: true, value: url, "aria-label": "the link", onfocus: (event) => event.target.select() }),
    copyButton("copy", () => url, "copied the link"),
    h("p.faint", "it ends ", timeView(expires)),
  );
}

function closeMenuByKey(event) {
  if (event.key !== "Escape" || !event.currentTarget.open) return;
  event.currentTarget.open = false;
  event.currentTarget.firstElementChild.focus();
  event.stopPropagation(); // else the key would leave the page
}

function closeMenuBehind(event) {
  if (event.relatedTarget && !event.currentTarget.contains(event.relatedTarget)) event.currentTarget.open = false;
}

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
