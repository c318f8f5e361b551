/** Short messages about what was done, or what went wrong; they leave by themselves, problems when they are closed. */

import { h } from "../core/dom.js";
import { refresh } from "../core/screen.js";

const SHOWN_FOR = 5000;
const notices = [];
let lastKey = 0;

/** Say that something was done. */
export function say(text, link = null) {
  const notice = add("done", text, link);
  setTimeout(() => close(notice), SHOWN_FOR);
}

/** Say what went wrong. */
export function complain(error) {
  if (error.name === "AbortError" || error.code === "no-token") return;
  add("failed", error.message, null);
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
    "div",
    { class: "notices", role: "status", "aria-live": "polite" },
    notices.map((each) =>
      h(
        "div",
        { key: each.key, class: `notice notice-${each.tone}` },
        h("span", {}, each.text),
        each.link && h("a", { href: each.link.href }, each.link.text),
        h("button", { class: "plain", "aria-label": "close this message", onclick: () => close(each) }, "×"),
      ),
    ),
  );
}
