/** The rows of a timeline as a tree: what the server sent, in the order in which they are shown. */

/** Rows from which on finished branches are closed until they are opened. */
const MANY = 300;

export class TimelineModel {
  constructor() {
    this.clear();
  }

  clear() {
    this.rows = new Map();
    this.children = null;
    this.choices = new Map();
    this.version = "";
    this.changes = 0;
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
    this.changes += 1;
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

/** The pieces of a row on the time axis: when it worked, which attempts failed, and when it waited. */
export function piecesOf(row, now) {
  const end = row.end ?? Math.max(now, row.start);
  const stops = [
    ...(row.attempts ?? []).map(([from, to, error]) => ({ kind: "failed", from, to, note: error })),
    ...(row.waits ?? []).map(([from, to, what]) => ({ kind: "wait", from, to: Math.min(to ?? end, Math.max(end, from)), note: what })),
  ].sort((a, b) => a.from - b.from);
  const pieces = [];
  let at = row.start;
  for (const stop of stops) {
    if (stop.from > at) pieces.push({ kind: "work", from: at, to: stop.from });
    pieces.push(stop);
    at = Math.max(at, stop.to);
  }
  const isOpen = row.end === undefined;
  if (end > at || !pieces.length) pieces.push({ kind: isOpen && stops.length && stops.at(-1).kind === "wait" && row.status !== "running" ? "wait" : "work", from: at, to: end });
  return pieces;
}
