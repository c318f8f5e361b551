/** The keys of this page. */

import { h } from "../core/dom.js";
import { openDialog } from "./dialog.js";

const KEYS = [
  ["/", "filter the runs"],
  ["j, k", "the next, the one before"],
  ["Enter", "open"],
  ["x", "select the run"],
  ["Esc", "back, close"],
  ["r", "retry or resume the run"],
  ["f", "fork the run"],
  ["← →", "close or open a branch"],
  ["1 – 4", "timeline, graph, state, events"],
  ["?", "this help"],
];

/** Show them. */
export function openHelp() {
  const view = () => [
    h("dl", { class: "keys" }, KEYS.map(([key, about]) => [h("dt", { key: `${key}-k` }, h("kbd", {}, key)), h("dd", { key: `${key}-a` }, about)])),
    h("p", { class: "faint" }, "Everything here is also on the command line (limpet --help), and in Python (limpet.Runs)."),
  ];
  openDialog({ title: "Keys", view });
}
