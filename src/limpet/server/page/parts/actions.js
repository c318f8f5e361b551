/** Forms that do something: they say what it is about, and how it is done without this page. */

import { h, refresh } from "../core/dom.js";
import { codePanel } from "./code.js";
import { closeDialog, openDialog } from "./dialog.js";

/**
 * A form that does something: what it is `about`, what it asks, the code that does the same, and the button that
 * starts it. `work` has `isWorking` and `problem`, and is changed by it.
 */
export function actionForm({ work, title, about, ask = null, code = null, tone = "primary", isReady = true, action }) {
  const start = async (event) => {
    event.preventDefault();
    Object.assign(work, { isWorking: true, problem: "" });
    refresh();
    try {
      await action();
    } catch (error) {
      work.problem = error.message;
    }
    work.isWorking = false;
    refresh();
  };
  return h(
    "form",
    { onsubmit: start },
    h("p", {}, about),
    ask,
    work.problem && h("p", { class: "field-problem", role: "alert" }, work.problem),
    code && codePanel(code),
    h(
      "div",
      { class: "dialog-actions" },
      h("button", { type: "button", onclick: closeDialog }, "Close"),
      h("button", { class: tone, disabled: work.isWorking || !isReady, autofocus: !ask }, work.isWorking ? "working …" : title),
    ),
  );
}

/** Ask whether to do something, and do it. `ask` and `code` may be functions, which are called for each view. */
export function confirm({ title, about, code, ask, tone, action, whenDone = () => {}, stays = false }) {
  const work = {};
  const start = async () => {
    const result = await action();
    if (!stays) closeDialog();
    whenDone(result);
  };
  const view = () => actionForm({ work, title, about, tone, ask: ask?.(), code: code?.(), action: start });
  openDialog({ title, view });
}

/** An input with its label, for a value of `target`. */
export function textField(label, target, name, properties = {}) {
  const set = (event) => {
    target[name] = event.target.value;
    refresh();
  };
  return h("label", { class: "field" }, label, " ", h("input", { value: target[name], autocomplete: "off", oninput: set, ...properties }));
}
