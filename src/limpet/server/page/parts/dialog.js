/** A dialog over the page: one at a time, closed by Escape, with the focus inside while it is open. */

import { h } from "../core/dom.js";
import { useKeys } from "../core/keyboard.js";
import { refresh } from "../core/screen.js";

let opened = null;

/** Open a dialog: `view` gives its content, each time that the page is shown. */
export function openDialog({ title, view, wide = false, onclose = () => {} }) {
  closeDialog();
  const before = document.activeElement;
  const leave = useKeys({ only: true, Escape: closeDialog });
  opened = { title, view, wide, onclose, before, leave, isNew: true };
  refresh();
}

/** Close the dialog, if one is open. */
export function closeDialog() {
  if (!opened) return;
  const closed = opened;
  opened = null;
  closed.leave();
  closed.onclose();
  refresh();
  requestAnimationFrame(() => closed.before?.isConnected && closed.before.focus());
}

/** Whether a dialog is open. */
export function hasDialog() {
  return opened !== null;
}

/** The dialog, if one is open. */
export function dialogView() {
  if (!opened) return null;
  const { title, view, wide } = opened;
  return h(
    "div",
    { key: "dialog", class: "backdrop", onmousedown: (event) => event.target === event.currentTarget && closeDialog() },
    h(
      "section",
      {
        class: wide ? "dialog dialog-wide" : "dialog",
        role: "dialog",
        "aria-modal": "true",
        "aria-label": title,
        tabindex: -1,
        onshow: focusFirst,
        onkeydown: keepFocus,
      },
      h(
        "header",
        {},
        h("h2", {}, title),
        h("button", { class: "plain", "aria-label": "close", onclick: closeDialog }, "×"),
      ),
      h("div", { class: "dialog-body" }, view()),
    ),
  );
}

function focusable(element) {
  return [...element.querySelectorAll("input, select, textarea, button, a[href], summary")].filter((each) => !each.disabled);
}

function focusFirst(element) {
  if (!opened?.isNew) return;
  opened.isNew = false;
  const wanted = element.querySelector("[autofocus]") ?? focusable(element).find((each) => !each.matches("header *"));
  (wanted ?? element).focus();
}

function keepFocus(event) {
  if (event.key !== "Tab") return;
  const all = focusable(event.currentTarget);
  const edge = event.shiftKey ? all[0] : all[all.length - 1];
  if (document.activeElement !== edge && document.activeElement !== event.currentTarget) return;
  event.preventDefault();
  (event.shiftKey ? all[all.length - 1] : all[0])?.focus();
}
