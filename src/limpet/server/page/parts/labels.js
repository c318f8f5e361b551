/** Times, spans, sizes, ids and statuses as people read them. */

import { h } from "../core/dom.js";
import { serverNow, settings } from "../core/reader.js";

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** How long ago, or in how long: "2 min ago", "in 3 h". Far times are dates. */
export function relativeTime(seconds, now = serverNow()) {
  const distance = seconds - now;
  const size = Math.abs(distance);
  if (size < 1.5) return "now";
  if (size > 60 * 86400) return exactTime(seconds).slice(0, 10);
  const [unit, name] = UNITS.find(([each]) => size >= each);
  const text = `${Math.floor(size / unit + 0.05)} ${name}`; // a link for 7 days has 7 at first
  return distance < 0 ? `${text} ago` : `in ${text}`;
}

/** A point in time, in the chosen zone: "2026-11-18 21:08:39.123 UTC+1". */
export function exactTime(seconds) {
  const date = new Date(seconds * 1000);
  if (Number.isNaN(date.getTime())) return String(seconds);
  const isUtc = settings.zone === "utc";
  const minutes = isUtc ? 0 : -date.getTimezoneOffset();
  const text = new Date(date.getTime() + minutes * 60000).toISOString();
  return `${text.slice(0, 10)} ${text.slice(11, 23)} ${zoneName(minutes)}`;
}

function zoneName(minutes) {
  if (minutes === 0) return "UTC";
  const size = Math.abs(minutes);
  const rest = size % 60 ? `:${String(size % 60).padStart(2, "0")}` : "";
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${rest}`;
}

/** A span: "0.4 s", "3 min 20 s", "2 h 5 min". */
export function span(seconds) {
  if (seconds < 0.0995) return `${Math.max(seconds * 1000, 0).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  const rounded = Math.round(seconds);
  const index = UNITS.findIndex(([unit]) => rounded >= unit);
  const [unit, name] = UNITS[index];
  const [below, belowName] = UNITS[index + 1];
  const rest = Math.floor((rounded % unit) / below);
  const whole = `${Math.floor(rounded / unit)} ${name}`;
  return rest ? `${whole} ${rest} ${belowName}` : whole;
}

/** Bytes: "4.2 MB". */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const kilobytes = bytes / 1000;
  if (kilobytes < 1000) return `${kilobytes < 10 ? kilobytes.toFixed(1) : Math.round(kilobytes)} kB`;
  return `${(kilobytes / 1000).toFixed(1)} MB`;
}

/** A number with separators, or "1 run", "3 runs"; "500+" or "500+ runs", if there are more. */
export function count(number, noun, hasMore) {
  const text = number.toLocaleString("en-US") + (hasMore ? "+" : "");
  if (!noun) return text;
  return `${text} ${noun}${text === "1" ? "" : "s"}`;
}

/** A long id, shortened in the middle. */
export function shortId(id, length = 28) {
  if (id.length <= length) return id;
  const half = Math.floor((length - 1) / 2);
  return `${id.slice(0, half)}…${id.slice(-half)}`;
}

/** A text in one line, at most this long. */
export function shortText(text, length = 120) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= length ? line : `${line.slice(0, length - 1)}…`;
}

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
  thread: ["next", "M-2.8 -2.6H2.8M-2.8 0H2.8M-2.8 2.6H1"],
  damaged: ["failed", "M0 -3.8L0 0.8M0 3.2L0 3.4"],
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
  return h("span.status", { css: { color: `var(--${toneOf(status)}-text)` } }, statusMark(status), h("span", status));
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
