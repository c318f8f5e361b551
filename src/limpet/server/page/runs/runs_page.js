/** The list of runs: counts by status, a filter, those that wait for a person, and the rest, live. */

import { get, LiveStream, runPath } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { go, pageUrl, setQuery, settings, useKeys } from "../core/reader.js";
import { codeBlock } from "../parts/code.js";
import { complain, giveFocus } from "../parts/dialog.js";
import { count, statusMark, toneOf } from "../parts/labels.js";
import { openForkDialog } from "../run/run_actions.js";
import { FilterBar, known, noteSeen, queryOf, statusesOf, termsOf, withStatus } from "./filter.js";
import { openBulkDialog, runsTable, WaitingList } from "./lists.js";

const PAGE = 50;
/** Milliseconds between two requests for what has changed. */
const PATIENCE = 1000;
/** The same after a request that failed. */
const RETRY = 5000;

/** The address of the list that was shown last, with its filter. */
export let listUrl = pageUrl("runs");

const FIRST_RUN = [
  "from limpet import StateGraph",
  "",
  'graph = StateGraph({"topic": str}, name="hello")',
  `graph.add_node("write", lambda state: {"text": f"All about {state['topic']}."})`,
  'graph.set_entry_point("write").set_finish_point("write").compile(store="sqlite:///runs.db").execute({"topic": "kelp"})',
].join("\n");

export class RunsPage {
  title = "Runs";

  constructor({ query, about }) {
    this.about = about;
    Object.assign(known, about);
    this.after = query.get("after") ?? "";
    this.filter = query.get("q") ?? "";
    this.runs = null;
    this.next = null;
    this.searched = null;
    this.counts = null;
    this.selection = new Set();
    this.chosenId = null;
    this.waiting = new WaitingList(about.read_only);
    this.bar = new FilterBar({
      text: this.filter,
      apply: (text) => this.apply(text),
      open: (id, options) => this.openRun(id, options),
    });
  }

  start() {
    this.leaveKeys = useKeys({
      "/": () => this.bar.focus(),
      j: () => this.move(1),
      k: () => this.move(-1),
      Enter: () => this.openChosen(),
      x: () => this.selectChosen(),
      r: () => this.withChosen((run) => this.openBulk("retry", { ids: [run.run_id] })),
      f: () => this.withChosen((run) => openForkDialog(run, { knowsGraph: this.about.graphs.includes(run.graph) })),
      Escape: () => this.clearSelection(),
    });
    this.load();
    noteSeen(this.about.graphs.map((graph) => ({ graph })));
    this.stream = new LiveStream({
      path: "/live",
      kinds: ["changed"],
      after: () => this.liveId,
      take: (kind, data, id) => {
        this.liveId = id;
        this.loadSoon();
      },
      changed: (state) => {
        if (state !== "off") this.loadSoon(); // the stream begins with what changes from now on
        refresh();
      },
    });
  }

  stop() {
    this.isStopped = true;
    this.leaveKeys();
    this.stream.close();
    this.bar.stop();
    this.stopLoading();
  }

  get liveState() {
    return this.stream?.state ?? "wait";
  }

  checkLive() {
    this.stream.check();
    if (settings.paused && this.runs) this.stopLoading();
  }

  stopLoading() {
    this.request?.abort();
    this.request = null;
    clearTimeout(this.timer);
    this.timer = null;
  }

  /** The address has changed, but not the page. */
  openPlace({ query }) {
    const filter = query.get("q") ?? "";
    const after = query.get("after") ?? "";
    if (filter === this.filter && after === this.after) return;
    this.filter = filter;
    this.after = after;
    this.bar.set(filter);
    this.clearSelection();
    this.load();
  }

  apply(text) {
    if (text.trim() === this.filter.trim()) return;
    this.filter = text.trim();
    this.after = "";
    setQuery({ q: this.filter, after: null });
    this.clearSelection();
    this.chosenId = null;
    this.load();
  }

  /** Load what the address asks for now. */
  async load() {
    listUrl = this.pageUrlAfter(this.after);
    const { query, problems } = queryOf(this.filter);
    this.problems = problems;
    if (problems.length) {
      refresh(); // the runs of the filter before it are kept
      return;
    }
    this.stopLoading();
    this.request = new AbortController();
    this.isStale = false;
    try {
      await this.loadAll(query, this.request.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.failure = error.message;
      if (error.status === 400) this.problems = [error.message];
      else {
        complain(error);
        this.timer = setTimeout(() => this.load(), RETRY);
      }
      refresh();
    }
    this.request = null;
    if (this.isStale) this.loadSoon();
  }

  /** What is looked at first comes first: the runs, with those above them, so that they don't move at once. */
  async loadAll(query, signal) {
    const [found] = await Promise.all([
      get("/runs", { ...query, after: this.after, limit: PAGE }, { signal }),
      !this.runs && this.waiting.load(signal),
    ]);
    const isFirst = !this.runs;
    this.runs = found.runs;
    noteSeen(this.runs);
    this.next = found.next;
    this.searched = found.searched;
    this.loadedAt = performance.now();
    refresh();
    await Promise.all([this.loadCounts(signal), !isFirst && this.waiting.load(signal)]);
  }

  /** Load what is shown again, once a second at most. What is being loaded comes first, however long it takes. */
  loadSoon() {
    this.isStale = true;
    if (this.timer || this.request) return;
    const passed = performance.now() - (this.loadedAt ?? 0);
    this.timer = setTimeout(() => this.load(), Math.max(PATIENCE - passed, 50));
  }

  async loadCounts(signal) {
    const { status, text, unserved, ...query } = queryOf(this.filter).query;
    this.counts = await get("/counts", query, { signal });
    refresh();
  }

  async openRun(id, { quietly = false } = {}) {
    try {
      await get(runPath(id));
      if (!this.isStopped) go(pageUrl("runs", id));
    } catch (error) {
      if (!quietly || error.status !== 404) complain(error);
    }
  }

  /** The place of the run that was chosen by keys. Others may come before it meanwhile. */
  get chosen() {
    return this.runs?.findIndex((run) => run.run_id === this.chosenId) ?? -1;
  }

  move(by) {
    if (!this.runs?.length) return;
    const next = Math.min(Math.max(this.chosen + by, 0), this.runs.length - 1);
    this.chosenId = this.runs[next].run_id;
    document.activeElement.blur(); // until the other row is shown, Enter would open the one before
    refresh();
    requestAnimationFrame(() => giveFocus(document.querySelector(".run-row.chosen .c-run a")));
  }

  openChosen() {
    const run = this.runs?.[this.chosen];
    if (!run) return false;
    go(pageUrl("runs", run.run_id));
    return true;
  }

  selectChosen() {
    this.withChosen((run) => this.toggle(run.run_id, false));
  }

  /** Do something with the run that was chosen by keys, unless nothing can be changed. */
  withChosen(action) {
    const run = this.runs?.[this.chosen];
    if (run && !this.about.read_only) action(run);
  }

  toggle(id, withRange) {
    if (this.problems?.length) return; // the runs are those of the filter before
    const isSelected = !this.selection.has(id);
    const ids = this.runs.map((run) => run.run_id);
    let range = [id];
    if (withRange && this.lastToggled) {
      const ends = [ids.indexOf(this.lastToggled), ids.indexOf(id)].sort((a, b) => a - b);
      if (ends[0] >= 0) range = ids.slice(ends[0], ends[1] + 1);
    }
    for (const each of range) {
      if (isSelected) this.selection.add(each);
      else this.selection.delete(each);
    }
    this.lastToggled = id;
    this.allMatching = false;
    refresh();
  }

  toggleAll(isSelected) {
    if (this.problems?.length) return;
    this.selection = new Set(isSelected ? this.runs.map((run) => run.run_id) : []);
    this.allMatching = false;
    refresh();
  }

  clearSelection() {
    this.selection.clear();
    this.allMatching = false;
    refresh();
  }

  view() {
    return h(
      "main.runs-page",
      h("h1.hidden", "Runs"),
      h("div.runs-top", this.bar.view(this.problems ?? []), this.chips()),
      this.waiting.view(this.filter !== ""),
      this.selectionBar(),
      this.content(),
    );
  }

  chips() {
    if (!this.counts) return h("div.chips.chips-empty");
    const chosen = statusesOf(this.filter);
    const { counts, more } = this.counts;
    const isShown = (status) => counts[status] || more.includes(status) || chosen.has(status);
    const shown = Object.keys(known.statuses).filter(isShown);
    return h(
      "div.chips",
      { role: "group", "aria-label": "filter by status" },
      shown.map((status) =>
        h(
          "button",
          {
            key: status,
            class: chosen.has(status) ? "chip chosen" : "chip",
            "aria-pressed": String(chosen.has(status)),
            title: known.statuses[status],
            css: { "--tone": `var(--${toneOf(status)}-text)`, "--tone-fill": `var(--${toneOf(status)}-fill)` },
            onclick: () => this.chooseStatus(status),
          },
          statusMark(status, 14),
          h("b", this.countOf(status)),
          ` ${status}`,
        ),
      ),
    );
  }

  countOf(status) {
    if (status === "damaged") return ""; // these aren't counted
    const number = this.counts.counts[status] ?? 0;
    const hasMore = this.counts.more.includes(status);
    return number || !hasMore ? count(number, "", hasMore) : "+";
  }

  chooseStatus(status) {
    const text = withStatus(this.filter, status);
    this.bar.set(text);
    this.apply(text);
  }

  selectionBar() {
    if (this.about.read_only || !this.selection.size) return null;
    const isWhole = this.next && this.selection.size === this.runs?.length;
    const canHaveAll = isWhole && !this.allMatching && !this.problems.length;
    const all = () => {
      this.allMatching = true;
      refresh();
    };
    return h(
      "div.selection",
      { role: "toolbar", "aria-label": "the selected runs" },
      h("b", this.allMatching ? "all runs that match" : count(this.selection.size, "run")),
      canHaveAll && h("button.small", { onclick: all }, "select all that match"),
      ["retry", "cancel", "delete"].map((verb) =>
        h("button", { key: verb, onclick: () => this.doWithAll(verb) }, verb),
      ),
      this.selection.size === 2 &&
        !this.allMatching &&
        h(
          "a.button",
          { href: pageUrl("compare", { a: [...this.selection][0], b: [...this.selection][1] }) },
          "compare",
        ),
      h("button.plain", { onclick: () => this.clearSelection() }, "clear"),
    );
  }

  doWithAll(verb) {
    if (this.allMatching) this.openBulk(verb, { filters: queryOf(this.filter).query });
    else this.openBulk(verb, { ids: [...this.selection] });
  }

  openBulk(verb, which) {
    const whenDone = () => {
      this.clearSelection();
      this.load();
    };
    openBulkDialog(verb, { ...which, whenDone });
  }

  content() {
    if (this.runs === null) return h("p.faint.loading", this.problems?.length ? "" : (this.failure ?? "loading …"));
    if (!this.runs.length) return this.nothing();
    return [
      runsTable({
        runs: this.runs,
        selection: this.about.read_only ? null : this.selection,
        toggle: (id, withRange) => this.toggle(id, withRange),
        toggleAll: (isSelected) => this.toggleAll(isSelected),
        chosen: this.chosen,
      }),
      this.searched !== null &&
        h("p.faint", `Only the newest ${count(this.searched)} runs were searched for the text.`),
      this.pager(),
    ];
  }

  pager() {
    if (!this.next && !this.after) return null;
    return h(
      "nav.pager",
      { "aria-label": "pages" },
      this.after && h("a.button", { href: this.pageUrlAfter("") }, "← newest"),
      this.next && h("a.button", { href: this.pageUrlAfter(this.next) }, "older →"),
    );
  }

  pageUrlAfter(after) {
    return pageUrl("runs", { ...(this.filter && { q: this.filter }), ...(after && { after }) });
  }

  nothing() {
    if (termsOf(this.filter).length || this.after) {
      const clear = () => {
        this.bar.set("");
        this.apply("");
      };
      return h("div.empty", h("p", "No run matches."), h("button", { onclick: clear }, "Show all runs"));
    }
    return h(
      "div.empty",
      h("p", "There are no runs yet."),
      this.about.graphs.map((name) =>
        h("p", { key: name }, h("a", { href: pageUrl("graphs", name) }, `Start a run of ${name}`)),
      ),
      h("p", "This makes one:"),
      codeBlock("Python", FIRST_RUN),
      h("p", "Then this page shows it at once: ", h("code", "limpet serve --store sqlite:///runs.db")),
    );
  }
}
