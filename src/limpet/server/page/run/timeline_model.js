/** The rows of a timeline as a tree, and where their times are on an axis. */

import { span } from "../parts/labels.js";

/** Rows from which on finished branches are closed until they are opened. */
const MANY = 60;

export class TimelineModel {
  constructor() {
    this.clear();
  }

  clear() {
    this.rows = new Map();
    this.children = null;
    this.choices = new Map();
    this.version = "";
    this.total = 0;
    this.flatRows = null;
  }

  /** Take in an answer of the server. */
  take(answer) {
    if (answer.reset && this.version) this.clear();
    const before = this.rows.size;
    for (const row of answer.rows) this.rows.set(row.id, row);
    if (answer.dropped) this.drop(answer.dropped);
    if (this.rows.size !== before || answer.dropped) this.children = null;
    this.version = answer.version;
    this.total = answer.total;
    this.ready = answer.ready;
    this.active = answer.active ?? null;
    this.problem = answer.problem;
    this.flatRows = null;
  }

  /** Forget the oldest rows, as the server has: of very long runs only the newest are kept. */
  drop(first) {
    for (const id of this.rows.keys()) if (id < first) this.rows.delete(id);
  }

  /** The ids of the rows inside of a row, or of those on top. They come in the order in which they changed. */
  inside(parent) {
    if (!this.children) {
      this.children = new Map();
      for (const id of [...this.rows.keys()].sort((a, b) => a - b)) {
        const row = this.rows.get(id);
        const outer = this.rows.has(row.parent) ? row.parent : null;
        if (!this.children.has(outer)) this.children.set(outer, []);
        this.children.get(outer).push(id);
      }
    }
    return this.children.get(parent) ?? [];
  }

  /** Whether the rows inside of a row are shown. */
  isOpen(row) {
    const usually = this.rows.size < MANY || row.status !== "done";
    return this.choices.get(row.id) ?? usually;
  }

  toggle(row, isOpen = !this.isOpen(row)) {
    this.choices.set(row.id, isOpen);
    this.flatRows = null;
  }

  hasChildren(row) {
    return this.inside(row.id).length > 0;
  }

  /** Make a row visible: open what is around it. */
  reveal(id) {
    for (let row = this.rows.get(id); row?.parent !== undefined; row = this.rows.get(row.parent)) {
      const parent = this.rows.get(row.parent);
      if (parent && !this.isOpen(parent)) this.toggle(parent, true);
    }
  }

  /** The rows that are shown, each with its depth. */
  flat() {
    if (!this.flatRows) {
      this.flatRows = [];
      this.collect(null, 0);
    }
    return this.flatRows;
  }

  collect(parent, depth) {
    for (const id of this.inside(parent)) {
      const row = this.rows.get(id);
      this.flatRows.push({ row, depth });
      if (this.hasChildren(row) && this.isOpen(row)) this.collect(id, depth + 1);
    }
  }

  /** The row that needs attention: the last that failed or waits; else the last that is under way; else the last. */
  mostUrgent() {
    const ranks = { failed: 4, paused: 3, waiting: 2, retrying: 2, sleeping: 2, running: 1 };
    let found = null;
    let foundRank = -1;
    for (const row of this.rows.values()) {
      const isInner = this.hasChildren(row);
      const rank = isInner ? 0 : (ranks[row.status] ?? 0);
      if (rank >= foundRank && !(isInner && found)) {
        found = row;
        foundRank = rank;
      }
    }
    return found;
  }
}

/** Whether a process executes a run. */
export function isWorking(run) {
  return run.status === "running";
}

/** The status of a row: what was under way waits as its run does, until a process executes that again. */
export function statusOf(row, run) {
  return row.status === "running" && !isWorking(run) ? run.status : row.status;
}

/** The pieces of a row on the time axis: when it worked, which attempts failed, and when it waited. */
export function piecesOf(row, now, isLive = true) {
  const end = row.end ?? Math.max(now, row.start);
  const stops = [
    ...(row.attempts ?? []).map(([from, to, error]) => ({ kind: "failed", from, to, note: error })),
    ...(row.waits ?? []).map(([from, to, what]) => ({
      kind: "wait",
      from,
      to: Math.min(to ?? end, Math.max(end, from)),
      note: what,
    })),
  ].sort((a, b) => a.from - b.from);
  const pieces = [];
  let at = row.start;
  for (const stop of stops) {
    if (stop.from > at) pieces.push({ kind: "work", from: at, to: stop.from });
    pieces.push(stop);
    at = Math.max(at, stop.to);
  }
  const isOpen = row.end === undefined;
  if (end > at || !pieces.length)
    pieces.push({
      kind: isOpen && (!isLive || (stops.at(-1)?.kind === "wait" && row.status !== "running")) ? "wait" : "work",
      from: at,
      to: end,
    });
  return pieces;
}

const GAP_WIDTH = 60;
/** The part of the axis that all gaps may take: else little is left of a narrow one. */
const GAPS_PART = 0.4;
const MAX_GAPS = 8;
/** A gap is left out if it is this part of the time in which something worked. */
const GAP_PART = 0.2;
const SHORTEST_GAP = 0.25;
const STEPS = [1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.4, 8, 10];
const TICK_DISTANCE = 110;

/** The axis for rows, `width` pixels wide. While the run is live it is a little longer, so that bars rarely shrink. */
export function timeAxis(rows, width, now, isLive) {
  const busy = busyTimes(rows, now, isLive);
  if (!busy.length) return new TimeAxis([], width, now);
  const worked = busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const least = Math.max(worked * GAP_PART, SHORTEST_GAP);
  const gaps = [];
  for (let index = 1; index < busy.length; index += 1) {
    const length = busy[index][0] - busy[index - 1][1];
    if (length > least) gaps.push({ index, length });
  }
  const left = new Set(
    gaps
      .sort((a, b) => b.length - a.length)
      .slice(0, MAX_GAPS)
      .map((gap) => gap.index),
  );
  const parts = [];
  busy.forEach(([from, to], index) => {
    if (index === 0 || left.has(index)) {
      if (index > 0) parts.push({ from: parts.at(-1).to, to: from, isGap: true });
      parts.push({ from, to, isGap: false });
    } else {
      parts.at(-1).to = Math.max(parts.at(-1).to, to);
    }
  });
  if (isLive) lengthen(parts);
  return new TimeAxis(parts, width, busy[0][0]);
}

/** The times in which something worked, in order, without overlaps. */
function busyTimes(rows, now, isLive) {
  const times = [];
  for (const row of rows) {
    if (row.kind === "branch") continue;
    for (const piece of piecesOf(row, now, isLive)) {
      if (piece.kind !== "wait") times.push([piece.from, piece.to]);
      else times.push([piece.from, piece.from], [piece.to, piece.to]);
    }
  }
  times.sort((a, b) => a[0] - b[0]);
  const merged = [];
  for (const [from, to] of times) {
    const last = merged.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else merged.push([from, to]);
  }
  return merged;
}

function lengthen(parts) {
  const shown = parts.filter((part) => !part.isGap).reduce((sum, part) => sum + part.to - part.from, 0);
  const wanted = Math.max(shown * 1.08, 0.05);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = STEPS.find((each) => each * power >= wanted) ?? 10;
  parts.at(-1).to += step * power - shown;
}

class TimeAxis {
  constructor(parts, width, start) {
    this.parts = parts;
    this.width = width;
    this.start = start;
    const gaps = parts.filter((part) => part.isGap).length;
    const shown = parts.reduce((sum, part) => sum + (part.isGap ? 0 : part.to - part.from), 0);
    const gapWidth = Math.min(GAP_WIDTH, (width * GAPS_PART) / gaps);
    this.scale = shown > 0 ? (width - (gaps && gaps * gapWidth)) / shown : 0;
    let x = 0;
    for (const part of parts) {
      part.x = x;
      part.width = part.isGap ? gapWidth : (part.to - part.from) * this.scale;
      x += part.width;
    }
    this.length = x;
  }

  /** Where a time is, in pixels. */
  x(time) {
    let low = 0;
    let high = this.parts.length - 1;
    if (high < 0) return 0;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.parts[middle].from <= time) low = middle;
      else high = middle - 1;
    }
    const part = this.parts[low];
    const length = part.to - part.from;
    const share = length > 0 ? (time - part.from) / length : 0;
    return part.x + Math.min(Math.max(share, 0), 1) * part.width;
  }

  /** The gaps that are left out, with their lengths in words. */
  gaps() {
    return this.parts
      .filter((part) => part.isGap)
      .map((part) => ({ x: part.x, width: part.width, text: span(part.to - part.from).split(" ", 2).join(" ") }));
  }

  /** Times to write on the axis, as how long after the start they are. */
  ticks() {
    if (!this.scale) return [];
    const rough = Math.min(TICK_DISTANCE, Math.max(this.width / 4, 42)) / this.scale;
    const most = this.width / 2 / this.scale; // so that there are two, however narrow it is
    const power = 10 ** Math.floor(Math.log10(rough));
    const round = [0.2, 0.5, 1, 2, 5, 10].map((each) => each * power);
    const distance = round.find((each) => each >= rough && each <= most) ?? round.findLast((each) => each <= most);
    const ticks = [];
    for (const part of this.parts.filter((each) => !each.isGap)) {
      const first = Math.ceil((part.from - this.start) / distance) * distance;
      for (let after = first; this.start + after <= part.to && ticks.length < 400; after += distance) {
        ticks.push({ x: this.x(this.start + after), text: after < distance / 2 ? "0" : tickText(after, distance) });
      }
    }
    const gaps = this.gaps();
    let end = 0;
    return ticks.filter(({ x, text }) => {
      const next = x + 6 + text.length * 6;
      if (x < end || gaps.some((gap) => gap.x >= x && gap.x < next)) return false;
      end = next;
      return true;
    });
  }
}

function tickText(seconds, distance) {
  if (seconds >= 60) {
    if (distance >= 1) return span(seconds);
    const minutes = Math.floor(seconds / 60) * 60;
    return `${span(minutes)} ${tickText(seconds - minutes, distance)}`;
  }
  if (distance < 0.01) return `${(seconds * 1000).toFixed(distance < 0.001 ? 1 : 0)} ms`;
  return `${seconds.toFixed(distance < 0.1 ? 2 : distance < 1 ? 1 : 0)} s`;
}
