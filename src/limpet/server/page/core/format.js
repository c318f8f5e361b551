/** Times, spans, sizes and ids as people read them. */

import { settings } from "./settings.js";

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** How long ago, or in how long: "2 min ago", "in 3 h". Far times are dates. */
export function relativeTime(seconds, now = Date.now() / 1000) {
  const distance = seconds - now;
  const size = Math.abs(distance);
  if (size < 1.5) return "now";
  if (size > 60 * 86400) return exactTime(seconds).slice(0, 10);
  const [unit, name] = UNITS.find(([each]) => size >= each) ?? [1, "s"];
  const text = `${Math.floor(size / unit)} ${name}`;
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

/** The time of a day only, for an axis. */
export function clockTime(seconds) {
  return exactTime(seconds).slice(11, 19);
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

/** A number with separators, or "1 run", "3 runs". */
export function count(number, noun = "") {
  const text = number.toLocaleString("en-US");
  if (!noun) return text;
  return `${text} ${noun}${number === 1 ? "" : "s"}`;
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

/** A process in a few words: its host and its number. */
export function processName(holder) {
  return holder.length <= 40 ? holder : shortId(holder, 40);
}
