/** A point in time: relative, with the exact one on hover. */

import { h } from "../core/dom.js";
import { exactTime, relativeTime } from "../core/format.js";

/** The time as an element. */
export function timeView(seconds) {
  if (seconds === null || seconds === undefined) return null;
  return h("time", { title: exactTime(seconds), datetime: machineTime(seconds) }, relativeTime(seconds));
}

function machineTime(seconds) {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? null : date.toISOString();
}
