/** The waterfall of a run: a row for each step, branch and task, with its bars on the time axis. */

import { h, refresh } from "../core/dom.js";
import { count, exactTime, span, statusMark, toneOf } from "../parts/labels.js";
import { isWorking, piecesOf, statusOf, timeAxis } from "./timeline_model.js";

const ROW_HEIGHT = 30;
/** Rows above and below the visible ones that are there already. */
const SPARE = 12;
/** Rows up to which all are in the document, so that the browser's search finds them. */
const ALL = 250;
/** Rows from which on the axis is made again only when something has changed. */
const MANY = 2000;
const MOST_ZOOM = 256;
const LONGEST_LABEL = 15;
/** The number of an item of a map, which is never cut off. */
const INDEX = /\[\d+\]$/;

export class TimelineView {
  constructor({ model, select }) {
    this.model = model;
    this.select = select;
    this.zoom = 1;
    this.top = 0;
    this.height = 600;
    this.width = 800;
    this.selected = null;
    this.wanted = null;
    this.isAway = false;
    this.observer = new ResizeObserver(() => this.measure());
  }

  stop() {
    this.observer.disconnect();
  }

  /** Show a row as selected, and bring it into view: unless it follows the run, and the reader looks elsewhere. */
  show(id, byReader = true) {
    if (!byReader && id === this.selected) return;
    if (byReader || !this.isAway) this.wanted = id;
    this.selected = id;
    this.model.reveal(id);
    refresh();
  }

  view(run, now) {
    this.run = run;
    const flat = this.model.flat();
    const axis = this.axis(flat, now);
    const all = [...flat, ...this.activeRows().map((row) => ({ row, depth: 0 }))];
    const [first, last] = this.visible(all.length);
    const shown = all.slice(first, last);
    const hasSelected = shown.some((each) => each.row.id === this.selected);
    return h(
      "section.timeline",
      { "aria-label": "timeline" },
      h(
        "div.timeline-tools",
        h("span.faint", this.caption(run)),
        h(
          "span.zoom",
          { role: "group", "aria-label": "zoom" },
          h(
            "button.small",
            { "aria-label": "zoom out", disabled: this.zoom <= 1, onclick: () => this.setZoom(this.zoom / 2) },
            "−",
          ),
          h("button.small", { disabled: this.zoom === 1, onclick: () => this.setZoom(1) }, "fit"),
          h(
            "button.small",
            { "aria-label": "zoom in", disabled: this.zoom >= MOST_ZOOM, onclick: () => this.setZoom(this.zoom * 2) },
            "+",
          ),
        ),
      ),
      h(
        "div.timeline-scroll",
        {
          tabindex: 0,
          role: "tree",
          "aria-label": "steps",
          "aria-activedescendant": hasSelected ? `row-${this.selected}` : null,
          onshow: (element) => this.attach(element, all),
          onscroll: (event) => this.scroll(event.currentTarget),
        },
        this.head(axis),
        h(
          "div.timeline-rows",
          { css: { height: `${all.length * ROW_HEIGHT}px` } },
          shown.map((each, index) => this.row(each, first + index, axis, now)),
        ),
        !all.length && h("p.faint.loading", "no step has ended yet"),
      ),
    );
  }

  caption(run) {
    const loaded = this.model.rows.size;
    const rows = count(this.model.total, "row");
    return loaded < this.model.total ? `${count(loaded)} of ${rows} …` : `${rows}, from ${exactTime(run.created)}`;
  }

  axis(flat, now) {
    const isLive = isWorking(this.run);
    const moment = isLive && this.model.rows.size < MANY ? Math.round(now * 4) : 0;
    const key = `${this.model.version} ${this.width} ${this.zoom} ${flat.length} ${isLive} ${moment}`;
    if (this.axisKey !== key) {
      this.axisKey = key;
      const rows = this.model.rows.values();
      const width = this.trackWidth();
      this.lastAxis = timeAxis([...rows, ...this.activeRows()], width - Math.min(130, width * 0.4), now, isLive);
    }
    return this.lastAxis;
  }

  /** What is under way, but has no row yet: a row is made when a step is saved. */
  activeRows() {
    if (!isWorking(this.run) && this.run.status !== "abandoned") return [];
    return (this.model.active ?? []).map((each, index) => ({
      id: `active-${index}`,
      kind: "step",
      label: each.label,
      start: each.since,
      status: "running",
      branch: each.branch,
      isActive: true,
    }));
  }

  trackWidth() {
    return Math.max(this.width - this.labelWidth(), 160) * this.zoom;
  }

  labelWidth() {
    return this.width < 560 ? 148 : LONGEST_LABEL * 16;
  }

  visible(length) {
    if (length <= ALL) return [0, length];
    const first = Math.max(Math.floor(this.top / ROW_HEIGHT) - SPARE, 0);
    return [first, Math.min(first + Math.ceil(this.height / ROW_HEIGHT) + 2 * SPARE, length)];
  }

  head(axis) {
    return h(
      "div.timeline-head",
      { css: { width: `${this.labelWidth() + this.trackWidth()}px` } },
      h("div.timeline-label", { css: { width: `${this.labelWidth()}px` } }),
      h(
        "div.timeline-ticks",
        axis.ticks().map((tick, index) => h("span.tick", { key: index, css: place(tick.x) }, tick.text)),
        axis
          .gaps()
          .map(({ x, width, text }, index) =>
            h(
              "span.gap",
              { key: `gap-${index}`, title: `${text} in which nothing worked`, css: place(x, width) },
              width < 36 ? "⋯" : `⋯ ${text}`,
            ),
          ),
      ),
    );
  }

  row({ row, depth }, index, axis, now) {
    const isSelected = row.id === this.selected;
    const hasChildren = this.model.hasChildren(row);
    return h(
      "div",
      {
        key: row.id,
        id: `row-${row.id}`,
        class: `timeline-row kind-${row.kind}${isSelected ? " selected" : ""}`,
        role: "treeitem",
        "aria-selected": String(isSelected),
        "aria-level": depth + 1,
        "aria-expanded": hasChildren ? String(this.model.isOpen(row)) : null,
        css: { top: `${index * ROW_HEIGHT}px`, width: `${this.labelWidth() + this.trackWidth()}px` },
        onclick: () => !row.isActive && this.select(row.id),
        "data-row": row.id,
      },
      this.label(row, depth, hasChildren),
      h(
        "div.track",
        axis.gaps().map((gap, index) => h("span.track-gap", { key: `gap-${index}`, css: place(gap.x, gap.width) })),
        bars(row, axis, now, this.run),
      ),
    );
  }

  label(row, depth, hasChildren) {
    const toggle = (event) => {
      event.stopPropagation();
      this.model.toggle(row);
      refresh();
    };
    return h(
      "div.timeline-label",
      { css: { width: `${this.labelWidth()}px`, "padding-left": `${8 + depth * 14}px` }, title: row.note || row.label },
      hasChildren
        ? h(
            "button.plain.arrow",
            { tabindex: -1, "aria-label": "open or close", onclick: toggle },
            this.model.isOpen(row) ? "▾" : "▸",
          )
        : h("span.arrow"),
      statusMark(statusOf(row, this.run), 14),
      h("span.timeline-name", row.label.replace(INDEX, "") || "…"),
      h("span.timeline-index", INDEX.exec(row.label)?.[0]),
      row.output && h("span.badge", { title: "emitted items" }, `${row.output} ⇢`),
    );
  }

  setZoom(zoom) {
    const { element, zoom: before } = this;
    const half = (this.width - this.labelWidth()) / 2;
    const middle = element.scrollLeft + half;
    const isInView = Math.abs(this.placeOfSelected() - middle) <= half;
    this.zoom = Math.min(Math.max(zoom, 1), MOST_ZOOM);
    refresh(); // before it is scrolled, as it can't be scrolled further than it is wide
    requestAnimationFrame(() => {
      element.scrollLeft = (isInView ? this.placeOfSelected() : (middle * this.zoom) / before) - half;
    });
  }

  /** The middle of the selected row's bars on the track; not a number, if no row is selected. */
  placeOfSelected() {
    const row = this.model.rows.get(this.selected);
    return (this.lastAxis.x(row?.start) + this.lastAxis.x(row?.end ?? Infinity)) / 2;
  }

  attach(element, all) {
    if (this.element !== element) {
      this.observer.disconnect();
      this.element = element;
      this.top = 0; // another element than before, that isn't scrolled
      this.wanted ??= this.selected;
      this.observer.observe(element);
      this.measure();
    }
    if (this.wanted === null || !element.clientHeight) return;
    const index = all.findIndex((each) => each.row.id === this.wanted);
    if (index < 0) return;
    this.wanted = null;
    const top = index * ROW_HEIGHT;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top > element.scrollTop + element.clientHeight - 3 * ROW_HEIGHT)
      element.scrollTop = top - element.clientHeight + 3 * ROW_HEIGHT;
  }

  measure() {
    if (!this.element || (this.width === this.element.clientWidth && this.height === this.element.clientHeight)) return;
    this.width = this.element.clientWidth;
    this.height = this.element.clientHeight;
    refresh();
  }

  scroll(element) {
    this.top = element.scrollTop;
    const flat = this.model.flat();
    if (flat.length > ALL) refresh();
    if (this.wanted !== null) return; // it is about to be brought into view
    const place = flat.findIndex((each) => each.row.id === this.selected) * ROW_HEIGHT;
    this.isAway = place < this.top - ROW_HEIGHT || place > this.top + this.height;
  }
}

function bars(row, axis, now, run) {
  const end = row.end ?? now;
  const pieces = piecesOf(row, now, isWorking(run)).map((piece, index) => bar(piece, index, row, axis));
  const last = axis.x(end);
  const words = row.kind === "mark" ? row.label : barText(row, now);
  return [...pieces, h("span", { key: "text", class: "bar-text", css: place(last + 8) }, words)];
}

function barText(row, now) {
  const length = span((row.end ?? Math.max(now, row.start)) - row.start);
  const progress = row.progress?.total ? ` · ${count(row.progress.done ?? 0)} of ${count(row.progress.total)}` : "";
  const attempts = row.attempts?.length ? ` · ${row.attempts.length} failed` : "";
  const crashes = row.crashes ? ` · ${row.crashes} crashed` : "";
  return `${length}${progress}${attempts}${crashes}`;
}

function bar(piece, index, row, axis) {
  const left = axis.x(piece.from);
  const width = Math.max(axis.x(piece.to) - left, piece.kind === "wait" ? 1 : 3);
  const worked = row.status === "failed" && row.kind !== "branch"; // it failed in its last piece alone
  const tone = piece.kind === "failed" ? "failed" : toneOf(worked ? "done" : row.status);
  const isLive = piece.kind === "work" && row.status === "running";
  const isShort = width < 6 && piece.kind === "work";
  const words = { wait: "waited", failed: `failed: ${piece.note}`, work: "worked" }[piece.kind];
  return h("span.bar", {
    key: index,
    class: `bar-${piece.kind}${row.kind === "branch" ? " bar-branch" : ""}${isLive ? " bar-live" : ""}`,
    title: `${words} ${span(piece.to - piece.from)}`,
    css: { ...place(left, width), "--tone": `var(--${tone}-outline)`, "--tone-fill": `var(--${tone}-${isShort ? "outline" : "fill"})` },
  });
}

function place(left, width) {
  return { left: `${left}px`, ...(width !== undefined && { width: `${width}px` }) };
}
