/** Shows the open page again, once a frame at most, after something has changed. */

import { render } from "./dom.js";

let view = () => null;
let isPlanned = false;

/** Say what the whole document shows. */
export function setView(next) {
  view = next;
  refresh();
}

/** Show it again soon. */
export function refresh() {
  if (isPlanned) return;
  isPlanned = true;
  requestAnimationFrame(() => {
    isPlanned = false;
    render(document.getElementById("app"), view());
  });
}
