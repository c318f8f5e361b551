/** Things that a click copies. */

import { h } from "../core/dom.js";
import { say } from "./notices.js";

/** Copy a text, and say so. */
export async function copy(text, what = "copied") {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // the clipboard needs https, or this machine
  }
  say(what);
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies; `text` is called when it is clicked. */
export function copyButton(label, text, what) {
  return h("button", { class: "small", onclick: async () => copy(await text(), what) }, label);
}
