/** The head of a run: what it is, how it is, and what can be done with it, with the dialogs that ask for what is needed. */

import { get, post, remove, ROOT, runPath, urlOf } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { count, exactTime, processName, shortId, span } from "../core/format.js";
import { go, pageUrl } from "../core/router.js";
import { answerCode, cancelCode, codePanel, copy, copyButton, deleteCode, retryCode, rollbackCode, sendCode } from "../parts/code.js";
import { closeDialog, openDialog, say } from "../parts/dialog.js";
import { EMPTY, JsonField } from "../parts/forms.js";
import { statusLabel, timeView } from "../parts/labels.js";
import { isOver } from "../runs/runs_table.js";

/** What a run that has stopped needs. */
const PRIMARY = new Set(["approve", "retry", "resume"]);

/** The head. `actions` opens the dialogs. */
export function runHeader(run, children, actions, isReadOnly) {
  return h(
    "header",
    { class: "run-header" },
    h(
      "div",
      { class: "run-title" },
      h("a", { class: "faint", href: pageUrl("graphs", run.graph) }, run.graph),
      h("span", { class: "faint", "aria-hidden": "true" }, "/"),
      h("h1", { title: run.run_id }, h("button", { class: "id", title: "copy the id", onclick: () => copy(run.run_id, "copied the id") }, shortId(run.run_id, 40))),
      statusLabel(run.status),
    ),
    h("div", { class: "run-facts" }, facts(run, children)),
    h("div", { class: "run-actions" }, buttons(run, actions, isReadOnly)),
  );
}

function facts(run, children) {
  const parts = [
    h("span", {}, isOver(run) ? "ended " : "changed ", timeView(run.updated)),
    h("span", {}, "created ", timeView(run.created)),
    isOver(run) && h("span", {}, span(run.updated - run.created)),
    h("span", {}, count(run.step, "step")),
    run.queue !== "default" && h("span", {}, `queue ${run.queue}`),
    run.held_by && run.status === "running" && h("span", { title: run.held_by }, `by ${processName(run.held_by)}`),
    run.deadline && !isOver(run) && h("span", {}, "deadline ", timeView(run.deadline)),
    run.parent && h("span", {}, "started by ", runLink(run.parent)),
    run.forked_from && h("span", {}, "forked from ", runLink(run.forked_from.replace(/@\d+$/, ""))),
    children.length > 0 && h("a", { href: `${pageUrl("runs")}?q=${encodeURIComponent(`parent:"${run.run_id}"`)}` }, count(children.length, "child run")),
    ...run.tags.map((tag) => h("a", { class: "tag", href: `${pageUrl("runs")}?q=${encodeURIComponent(`tag:"${tag}"`)}` }, tag)),
  ];
  return parts.filter(Boolean);
}

function runLink(id) {
  return h("a", { href: pageUrl("runs", id), title: id }, shortId(id));
}

function buttons(run, actions, isReadOnly) {
  const download = h("a", { class: "button", href: urlOf(runPath(run.run_id, "/export")), download: `${run.run_id}.run` }, "export");
  if (isReadOnly) return [download];
  const { main, more } = actionsFor(run);
  return [
    main.map((name) => h("button", { key: name, class: PRIMARY.has(name) ? "primary" : "", onclick: () => actions[name]() }, name)),
    h(
      "details",
      { class: "menu", onkeydown: (event) => event.key === "Escape" && event.currentTarget.removeAttribute("open") },
      h("summary", { class: "button", "aria-label": "more actions" }, "⋯"),
      h(
        "div",
        { class: "menu-items", onclick: (event) => event.currentTarget.parentElement.removeAttribute("open") },
        more.map((name) => h("button", { key: name, onclick: () => actions[name]() }, name)),
        h("a", { class: "menu-link", href: urlOf(runPath(run.run_id, "/export")), download: `${run.run_id}.run` }, "export"),
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
  constructor({ run, step, fork, whenDone }) {
    this.now = run;
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

  retry() {
    this.confirm("Retry", "The workers continue the run from where it stopped. Finished steps don't run again.", retryCode(this.id), () =>
      post(runPath(this.id, "/retry")),
    );
  }

  resume() {
    this.confirm("Resume", "The workers continue the run from here.", retryCode(this.id), () => post(runPath(this.id, "/retry")));
  }

  approve() {
    this.confirm("Approve", this.run.reason ?? "The run continues.", answerCode(this.id), () => post(runPath(this.id, "/answer")));
  }

  cancel() {
    const about = "Nothing new begins. What was saved stays, and the run can be retried.";
    this.confirm("Cancel run", about, cancelCode(this.id), () => post(runPath(this.id, "/cancel")), "danger");
  }

  delete() {
    const about = "The run and its journal are deleted for ever.";
    this.confirm("Delete run", about, deleteCode(this.id), () => remove(runPath(this.id)), "danger", () => go(pageUrl("runs")));
  }

  rollback() {
    const step = this.step() ?? Math.max(this.run.step - 1, 0);
    const field = { text: String(step) };
    const about = "The run is set back to where it was after a step, and paused. Its history stays.";
    const ask = () => h("label", { class: "field" }, "after step ", number(field, this.run.step));
    this.confirm(
      "Roll back",
      about,
      () => rollbackCode(this.id, Number(field.text)),
      () => post(runPath(this.id, "/rollback"), { step: Number(field.text) }),
      "danger",
      null,
      ask,
    );
  }

  send() {
    const [wanted] = this.run.waits.filter((wait) => wait.kind === "message");
    const name = { text: wanted?.name ?? "" };
    const value = new JsonField({ name: "value", schema: {}, isRequired: true });
    const ask = () => [
      h("label", { class: "field" }, "name ", h("input", { value: name.text, oninput: (event) => ((name.text = event.target.value), refresh()) })),
      value.view(),
    ];
    const read = () => {
      const found = value.read();
      if (!name.text.trim()) throw new Error("a message needs a name");
      return { name: name.text.trim(), value: found };
    };
    const code = () => sendCode(this.id, name.text || "NAME", value.text ? quietly(() => value.value()) : "VALUE");
    this.confirm("Send", "The message waits for the run, until a node receives it.", code, () => post(runPath(this.id, "/send"), read()), "primary", null, ask);
  }

  compare() {
    const other = { text: (this.run.forked_from ?? "").replace(/@\d+$/, "") };
    const ask = () =>
      h("label", { class: "field" }, "the id of the other run ", h("input", { value: other.text, oninput: (event) => (other.text = event.target.value.trim()) }));
    const open = async () => {
      await get(runPath(other.text));
      go(`${pageUrl("compare")}?a=${encodeURIComponent(other.text)}&b=${encodeURIComponent(this.id)}`);
      return null;
    };
    this.confirm("Compare", "Their states, side by side.", null, open, "primary", () => {}, ask);
  }

  /** A link with which one question can be answered, for a phone or for a colleague. */
  async link() {
    const state = { name: "", expires: "7d", made: null };
    const [question] = this.run.questions;
    const make = async () => {
      const { name, expires } = state;
      state.made = await post(runPath(this.id, "/link"), { question: question.id, expires, ...(name && { name }) });
      refresh();
    };
    const ask = () => [
      h("p", {}, question.prompt),
      h("label", { class: "field" }, "for whom ", h("input", { value: state.name, placeholder: "a name, for the history", oninput: (event) => (state.name = event.target.value.trim()) })),
      h("label", { class: "field" }, "valid for ", h("input", { value: state.expires, oninput: (event) => (state.expires = event.target.value.trim()) })),
      state.made && madeLink(state.made),
    ];
    this.confirm("Make link", "With this link a person can answer this one question, and nothing else. It needs no token.", null, make, "primary", "stay", ask);
  }

  /** Ask, do it, and say what happened. */
  confirm(title, about, code, action, tone = "primary", then = null, ask = () => null) {
    const state = { isWorking: false, problem: "" };
    const start = async (event) => {
      event.preventDefault();
      state.isWorking = true;
      state.problem = "";
      refresh();
      try {
        await action();
        if (then !== "stay") closeDialog();
        if (typeof then === "function") then();
        else this.whenDone(title);
      } catch (error) {
        state.problem = error.message;
      }
      state.isWorking = false;
      refresh();
    };
    const view = () =>
      h(
        "form",
        { onsubmit: start },
        h("p", {}, about),
        ask(),
        state.problem && h("p", { class: "field-problem", role: "alert" }, state.problem),
        code && codePanel(typeof code === "function" ? code() : code),
        h(
          "div",
          { class: "dialog-actions" },
          h("button", { type: "button", onclick: closeDialog }, "Close"),
          h("button", { class: tone, disabled: state.isWorking, autofocus: true }, state.isWorking ? "working …" : title),
        ),
      );
    openDialog({ title, view });
  }
}

function number(field, most) {
  return h("input", {
    type: "number",
    min: 0,
    max: most,
    value: field.text,
    oninput: (event) => {
      field.text = event.target.value;
      refresh();
    },
  });
}

function madeLink({ path, expires }) {
  const url = `${location.origin}${ROOT}${path}`;
  return h(
    "div",
    { class: "made-link" },
    h("input", { readonly: true, value: url, "aria-label": "the link", onfocus: (event) => event.target.select() }),
    copyButton("copy", () => url, "copied the link"),
    h("p", { class: "faint" }, `until ${exactTime(expires)}`),
  );
}

function quietly(read) {
  try {
    const value = read();
    return value === EMPTY ? "VALUE" : value;
  } catch {
    return "VALUE";
  }
}

/** Say that an action was done. */
export function sayDone(title, id) {
  const words = { Retry: "handed to the workers", Resume: "handed to the workers", Approve: "approved", "Cancel run": "cancelled", "Roll back": "rolled back", Send: "sent to" };
  if (words[title]) say(`${id}: ${words[title]}`);
}
