/** How an action is done without this page: its command line and its Python, to copy. */

import { h } from "../core/dom.js";
import { copyButton } from "./copy.js";

/** Both, closed until they are asked for. */
export function codePanel(code) {
  return h(
    "details",
    { class: "code-panel" },
    h("summary", {}, "The same as a command line and in Python"),
    codeBlock("Command line", code.cli),
    codeBlock("Python", code.python),
  );
}

/** A text of code with its title and a button that copies it. */
export function codeBlock(title, text) {
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, title, copyButton("copy", () => text, "copied")),
    h("pre", {}, h("code", {}, text)),
  );
}
