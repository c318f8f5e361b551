/** Where times are on the axis of a timeline. Long gaps, in which nothing worked, have a small fixed width. */

import { span } from "../core/format.js";
import { piecesOf } from "./timeline_model.js";

const GAP_WIDTH = 44;
const MAX_GAPS = 8;
/** A gap is left out if it is this part of the time in which something worked. */
const GAP_PART = 0.2;
const SHORTEST_GAP = 0.25;
const STEPS = [1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.4, 8, 10];
const TICK_DISTANCE = 110;

/** The axis for rows, `width` pixels wide. While the run is live it is a little longer, so that bars rarely shrink. */
export function timeAxis(rows, width, now, isLive) {
  const busy = busyTimes(rows, now);
  if (!busy.length) return new TimeAxis([], width, now);
  const worked = busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const least = Math.max(worked * GAP_PART, SHORTEST_GAP);
  const gaps = [];
  for (let index = 1; index < busy.length; index += 1) {
    const length = busy[index][0] - busy[index - 1][1];
    if (length > least) gaps.push({ index, length });
  }
  const left = new Set(gaps.sort((a, b) => b.length - a.length).slice(0, MAX_GAPS).map((gap) => gap.index));
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
function busyTimes(rows, now) {
  const times = [];
  for (const row of rows) {
    if (row.kind === "branch") continue;
    for (const piece of piecesOf(row, now)) {
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
    this.scale = shown > 0 ? Math.max(width - gaps * GAP_WIDTH, 40) / shown : 0;
    let x = 0;
    for (const part of parts) {
      part.x = x;
      part.width = part.isGap ? GAP_WIDTH : (part.to - part.from) * this.scale;
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
      .map((part) => ({ x: part.x, width: part.width, text: span(part.to - part.from) }));
  }

  /** Times to write on the axis, as how long after the start they are. */
  ticks() {
    if (!this.scale) return [];
    const rough = TICK_DISTANCE / this.scale;
    const power = 10 ** Math.floor(Math.log10(rough));
    const distance = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
    const ticks = [];
    for (const part of this.parts.filter((each) => !each.isGap)) {
      const first = Math.ceil((part.from - this.start) / distance) * distance;
      for (let after = first; this.start + after <= part.to && ticks.length < 400; after += distance) {
        ticks.push({ x: this.x(this.start + after), text: after < distance / 2 ? "0" : tickText(after, distance) });
      }
    }
    return ticks.filter((tick, index) => index === 0 || tick.x - ticks[index - 1].x > 40);
  }
}

function tickText(seconds, distance) {
  if (seconds >= 60) return span(seconds);
  if (distance < 0.01) return `${(seconds * 1000).toFixed(distance < 0.001 ? 1 : 0)} ms`;
  return `${seconds.toFixed(distance < 0.1 ? 2 : distance < 1 ? 1 : 0)} s`;
}
