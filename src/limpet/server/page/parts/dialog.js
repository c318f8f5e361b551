/** What is over the page: a dialog, one at a time, and short messages about what was done or went wrong. */

import { h, refresh } from "../core/dom.js";
import { useKeys } from "../core/reader.js";

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
  const menu = closed.before?.closest("details:not([open])"); // its buttons are hidden
  requestAnimationFrame(() => giveFocus(menu?.firstElementChild ?? closed.before));
}

/** Close the dialog with this view, and return whether it was still open. */
export function closeIfOpen(view) {
  const isOpen = opened?.view === view;
  if (isOpen) closeDialog();
  return isOpen;
}

/** Give an element the focus; the page, if it is gone. */
export function giveFocus(element) {
  const target = element?.isConnected ? element : document.querySelector("main");
  if (!target) return;
  if (target.tabIndex < 0) target.tabIndex = -1; // else it can't have it
  target.focus({ preventScroll: true });
}

/** What is under the dialog, which can't be reached while one is open; and the dialog. */
export function withDialog(...page) {
  return [h("div", { inert: opened !== null }, page), dialogView()];
}

function dialogView() {
  if (!opened) return null;
  const { title, view, wide } = opened;
  return h(
    "div",
    {
      key: "dialog",
      class: "backdrop",
      onmousedown: (event) => event.target === event.currentTarget && closeDialog(),
      onshow: (backdrop) => focusFirst(backdrop.firstChild), // what is inside is shown before it is in the document
    },
    h(
      "section",
      {
        class: wide ? "dialog dialog-wide" : "dialog",
        role: "dialog",
        "aria-modal": "true",
        "aria-label": title,
        tabindex: -1,
      },
      h("header", h("h2", title), h("button.plain", { "aria-label": "close", onclick: closeDialog }, "×")),
      h("div.dialog-body", view()),
    ),
  );
}

const FOCUSABLE = ["input", "select", "textarea", "button:enabled", "summary"];

function focusFirst(element) {
  if (!opened?.isNew) return;
  opened.isNew = false;
  const inside = FOCUSABLE.map((each) => `.dialog-body ${each}`).join();
  (element.querySelector("[autofocus]") ?? element.querySelector(inside) ?? element).focus();
}

const SHOWN_FOR = 5000;
const notices = [];
let lastKey = 0;

/** Say that something was done. */
export function say(text, link = null) {
  const notice = add("done", text, link);
  setTimeout(() => close(notice), SHOWN_FOR);
}

/** Say what went wrong. That the server doesn't answer may be over soon. */
export function complain(error) {
  if (error.name === "AbortError" || error.code === "no-token") return;
  const notice = add("failed", error.message, null);
  if (error.code === "no-server") setTimeout(() => close(notice), SHOWN_FOR);
}

/** Do something, and show the page again. What goes wrong is the `problem` of a view then, or is said. */
export async function attempt(action, view = null) {
  try {
    await action();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (view) view.problem = error.message;
    else complain(error);
  }
  refresh();
}

function add(tone, text, link) {
  const known = notices.find((each) => each.text === text);
  if (known) return known;
  lastKey += 1;
  const notice = { key: lastKey, tone, text, link };
  notices.push(notice);
  refresh();
  return notice;
}

function close(notice) {
  const index = notices.indexOf(notice);
  if (index >= 0) notices.splice(index, 1);
  refresh();
}

/** The messages. */
export function noticesView() {
  return h(
    "div.notices",
    { role: "status", "aria-live": "polite" },
    notices.map((each) =>
      h(
        "div",
        { key: each.key, class: `notice notice-${each.tone}` },
        h("span", each.text),
        each.link && h("a", { href: each.link.href }, each.link.text),
        h("button.plain", { "aria-label": "close this message", onclick: () => close(each) }, "×"),
      ),
    ),
  );
}
