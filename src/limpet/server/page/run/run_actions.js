/** The head of a run: what it is, how it is, and what can be done with it, with the dialogs that ask for what is needed. */

import { download, get, post, remove, ROOT, runPath } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { settings } from "../core/reader.js";
import { go, pageUrl } from "../core/router.js";
import {
  answerCode,
  confirm,
  copy,
  copyButton,
  needsGraph,
  rollbackCode,
  runCode,
  sendCode,
  textField,
} from "../parts/code.js";
import { attempt, openDialog, say } from "../parts/dialog.js";
import { JsonField, nameInput } from "../parts/forms.js";
import { count, shortId, span, statusLabel, timeView } from "../parts/labels.js";
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
    h("span", count(run.step, "step")),
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
