/** Statuses with their marks (a colour and a shape, as in the pictures of graphs), and times. */

import { h } from "../core/dom.js";
import { exactTime, relativeTime } from "../core/format.js";

/** For each status of a run, a step or a worker: its colours, and the shape in its badge. */
const MARKS = {
  completed: ["done", "M-3.4 0.2L-1 2.6L3.6 -2.4"],
  running: ["running", "M-2 -3.4L3.4 0L-2 3.4Z"],
  queued: ["next", "M-2.6 -3L0.6 0L-2.6 3M0.6 -3L3.6 0L0.6 3"],
  paused: ["paused", "M-1.8 -3.2L-1.8 3.2M1.8 -3.2L1.8 3.2"],
  failed: ["failed", "M-2.8 -2.8L2.8 2.8M2.8 -2.8L-2.8 2.8"],
  cancelled: ["skipped", "M-3.4 0L3.4 0"],
  sleeping: ["next", "M0 -3.6L0 0.4L2.8 2"],
  retrying: ["paused", "M3 1.6A3.4 3.4 0 1 1 3 -1.8M3.3 -4L3.2 -1.5L0.8 -1.7"],
  waiting: ["next", "M-3.6 -2.4H3.6V2.6H-3.6ZM-3.6 -2.2L0 0.6L3.6 -2.2"],
  abandoned: ["paused", "M0 -3.8L0 0.8M0 3.2L0 3.4"],
  quarantined: ["failed", "M0 -3.8L0 0.8M0 3.2L0 3.4"],
  damaged: ["failed", "M-2 -1.8C-2 -4.4 2 -4.4 2 -1.8C2 -0.2 0 -0.2 0 1.2M0 3.4L0 3.5"],
};

const SAME = { done: "completed", skipped: "cancelled", active: "completed", ended: "cancelled", alive: "completed" };

/** The colours of a status, by the name of their variables. */
export function toneOf(status) {
  return (MARKS[SAME[status] ?? status] ?? ["idle"])[0];
}

/** A small badge with the shape of a status; its name is for screen readers. */
export function statusMark(status, size = 16) {
  const [tone, path] = MARKS[SAME[status] ?? status] ?? ["idle", "M-3 0L3 0"];
  const attributes = {
    class: `mark ${status === "running" ? "mark-live" : ""}`,
    viewBox: "-8 -8 16 16",
    width: size,
    height: size,
    role: "img",
    "aria-label": status,
  };
  return h(
    "svg",
    attributes,
    h("circle", { r: 7.5, class: "mark-badge", css: { fill: `var(--${tone}-badge)` } }),
    h("path", { d: path, class: "mark-sign" }),
  );
}

/** A status in words, with its mark. */
export function statusLabel(status) {
  return h(
    "span",
    { class: "status", css: { color: `var(--${toneOf(status)}-text)` } },
    statusMark(status),
    h("span", {}, status),
  );
}

/** The time as an element. */
export function timeView(seconds) {
  if (seconds === null || seconds === undefined) return null;
  return h("time", { title: exactTime(seconds), datetime: machineTime(seconds) }, relativeTime(seconds));
}

function machineTime(seconds) {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? null : date.toISOString();
}
