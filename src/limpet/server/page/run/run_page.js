/** The page of one run: its head, its timeline, graph, state and events, and the selected step beside them. */

import { get, LiveStream, parseExact, post, runPath } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { go, pageUrl, serverNow, setQuery, settings, useKeys } from "../core/reader.js";
import { answerCode } from "../parts/code.js";
import { attempt, giveFocus, say } from "../parts/dialog.js";
import { QuestionForm } from "../parts/forms.js";
import { isOver } from "../runs/lists.js";
import { listUrl } from "../runs/runs_page.js";
import { Inspector } from "./inspector.js";
import { actionsFor, isUnclaimed, openForkDialog, RunActions, runHeader } from "./run_actions.js";
import { isWorking, TimelineModel } from "./timeline_model.js";
import { TimelineView } from "./timeline_view.js";
import { EventsView, GraphView, StateView, stepOf, tabs } from "./views.js";

const VIEWS = ["timeline", "graph", "state", "events"];
/** Milliseconds after which a run that has ended is looked at again: another process may retry it. */
const RECHECK = 10000;
/** Milliseconds between two requests for a view that has changed. */
const PATIENCE = 1000;
/** Milliseconds between two frames while something is under way. */
const TICK = 500;
/** Questions up to which each has its form. */
const MOST_FORMS = 20;
/** Where the selected step is on a sheet over the page. */
const NARROW = matchMedia("(max-width: 900px)");

export class RunPage {
  constructor({ parts, query, about }) {
    this.about = about;
    this.id = parts[1];
    this.title = this.id;
    this.run = null;
    this.around = {};
    this.problem = null;
    this.forms = new Map();
    this.model = new TimelineModel();
    this.inspector = new Inspector({ id: this.id, fork: (step, branch) => this.fork(step, branch) });
    this.state = new StateView(this.id);
    this.events = new EventsView(this.id);
    this.timeline = new TimelineView({
      model: this.model,
      select: (id) => this.select(id, true),
    });
    this.openPlace({ query });
  }

  start() {
    this.leaveKeys = useKeys({
      j: () => this.move(1),
      k: () => this.move(-1),
      ArrowLeft: () => this.openRow(false),
      ArrowRight: () => this.openRow(true),
      Escape: () => this.leave(),
      r: () => this.press("retry", "resume", "approve"),
      f: () => this.press("fork"),
      1: () => this.show("timeline"),
      2: () => this.show("graph"),
      3: () => this.show("state"),
      4: () => this.show("events"),
    });
    this.actions = this.makeActions();
    this.load();
    this.ticker = setInterval(() => this.tick(), TICK);
  }

  stop() {
    this.isStopped = true;
    this.leaveKeys();
    this.stream?.close();
    this.timeline.stop();
    clearInterval(this.ticker);
    clearTimeout(this.recheck);
    clearTimeout(this.viewTimer);
  }

  get liveState() {
    return this.stream?.state ?? "wait";
  }

  checkLive() {
    this.stream?.check();
    if (!settings.paused) this.loadViewSoon();
  }

  makeActions() {
    return new RunActions({
      run: () => this.run,
      knowsGraph: () => this.knowsGraph(),
      step: () => this.inspector.stepBefore(),
      fork: () => this.fork(this.inspector.stepBefore(), this.inspector.row?.branch),
      whenDone: () => this.reload(),
    });
  }

  /** The address has changed, but not the run. */
  openPlace({ query }) {
    const view = query.get("view");
    const row = query.get("row");
    this.viewName = VIEWS.includes(view) ? view : "timeline";
    this.state.step = stepOf(query.get("step"));
    this.events.type = query.get("type") ?? "";
    this.chosenRow = row !== null && /^\d+$/.test(row) ? Number(row) : null;
    if (this.run) {
      this.loadView();
      this.selectChosen();
    }
  }

  /** The facts of the run come first: they have the error. Then the timeline follows. */
  async load() {
    try {
      this.run = await get(runPath(this.id));
      this.problem = null;
    } catch (error) {
      this.problem = error;
      if (error.status !== 404 && !this.isStopped) this.recheck = setTimeout(() => this.load(), RECHECK);
      refresh();
      return;
    }
    this.follow();
    this.loadView();
    refresh();
  }

  follow() {
    this.stream?.close();
    clearTimeout(this.recheck);
    if (this.isStopped || this.problem) return;
    this.stream = new LiveStream({
      path: runPath(this.id, "/timeline/live"),
      kinds: ["timeline"],
      after: () => this.model.version,
      take: (kind, data) => this.take(parseExact(data)),
      changed: (state) => {
        if (state === "off" && this.stream?.hasEnded) this.checkLater();
        if (state === "lost") this.refreshRun(); // it may have been deleted
        refresh();
      },
    });
  }

  /** Of a run that has ended, look now and then whether it has been retried. All that there is has come. */
  checkLater() {
    clearTimeout(this.recheck);
    if (this.isStopped || this.problem) return;
    if (this.timeline.selected === null) this.selectChosen(); // if no message said that it was the last
    const { updated } = this.run;
    this.recheck = setTimeout(async () => {
      if (!settings.paused && !document.hidden) await this.refreshRun();
      if (isOver(this.run) && this.run.updated === updated) this.checkLater();
      else this.follow(); // it may have ended again
    }, RECHECK);
  }

  async refreshRun() {
    try {
      this.takeRun(await get(runPath(this.id)));
    } catch (error) {
      if (error.status === 404) {
        this.problem = error;
        this.stream?.close();
      }
    }
    refresh();
  }

  async reload() {
    settings.paused = false; // what was just done is to be seen
    await this.refreshRun();
    this.follow();
    this.loadView();
  }

  take(answer) {
    this.model.take(answer);
    this.takeRun(answer.run);
    if (!answer.more) this.selectChosen();
    refresh();
  }

  takeRun(run) {
    const before = this.run;
    this.run = run;
    if (before.step !== run.step || before.status !== run.status) this.loadViewSoon();
  }

  /** Show what the address names as selected; else, at first, what needs attention. */
  selectChosen() {
    const row = this.model.rows.get(this.chosenRow);
    if (row) {
      this.inspector.show(row);
      if (this.timeline.selected !== row.id) this.timeline.show(row.id);
      return;
    }
    const current = this.model.rows.get(this.timeline.selected);
    const urgent = this.model.mostUrgent();
    if (!urgent) return;
    const isFollowed = current && (this.isPinned || current.id === urgent.id);
    this.select(isFollowed ? current.id : urgent.id, false);
  }

  select(id, byReader) {
    const row = this.model.rows.get(id);
    if (!row) return;
    if (byReader) {
      this.isPinned = true;
      this.chosenRow = id;
      setQuery({ row: String(id) });
      this.isSheetOpen = true;
      if (this.hasSheet) requestAnimationFrame(() => giveFocus(document.querySelector(".inspector")));
    }
    this.timeline.show(id, byReader);
    this.inspector.show(row, byReader);
    refresh();
  }

  move(by) {
    const flat = this.model.flat();
    if (!flat.length) return;
    const index = flat.findIndex((each) => each.row.id === this.timeline.selected);
    const next = Math.min(Math.max(index + by, 0), flat.length - 1);
    this.select(flat[next].row.id, true);
  }

  openRow(isOpen) {
    const row = this.model.rows.get(this.timeline.selected);
    if (!row || !this.model.hasChildren(row)) return;
    this.model.toggle(row, isOpen);
    refresh();
  }

  leave() {
    if (this.hasSheet) this.closeSheet();
    else go(listUrl);
  }

  get hasSheet() {
    return this.isSheetOpen && NARROW.matches;
  }

  closeSheet() {
    this.isSheetOpen = false;
    refresh();
    requestAnimationFrame(() => giveFocus(document.querySelector(".timeline-scroll")));
  }

  press(...names) {
    if (!this.run || this.about.read_only) return;
    const { main } = actionsFor(this.run);
    const name = names.find((each) => main.includes(each));
    if (name) this.actions[name]();
  }

  fork(step, branch) {
    openForkDialog(this.run, { step, branch, knowsGraph: this.knowsGraph() });
  }

  /** Whether the server has the code of its graph. */
  knowsGraph() {
    return this.about.graphs.includes(this.run.graph);
  }

  show(view) {
    setQuery({ view: view === "timeline" ? null : view });
    this.viewName = view;
    this.loadView();
    refresh();
  }

  /** Load what the chosen view needs, besides the timeline. */
  async loadView(again = false) {
    if (!this.run || this.problem || this.isStopped) return;
    this.loadAround();
    if (this.viewName === "state" && (!again || this.state.step === null)) this.state.load(this.state.step);
    if (this.viewName === "events" && !(again && this.events.hasMore)) this.events.load(!again);
    if (this.viewName === "graph") this.loadGraph();
  }

  /** The same again, once a second at most: a run may take many steps in a second. */
  loadViewSoon() {
    this.viewTimer ??= setTimeout(() => {
      this.viewTimer = null;
      if (!settings.paused) this.loadView(true);
    }, PATIENCE);
  }

  async loadGraph() {
    const select = (id) => this.select(id, true);
    this.graph ??= new GraphView({ graph: this.run.graph, runId: this.id, select });
    if (!this.knowsGraph()) {
      this.graph.load(null);
      refresh();
      return;
    }
    await attempt(async () => {
      this.graphFacts ??= await get(`/graphs/${encodeURIComponent(this.run.graph)}`);
      await this.graph.load(this.graphFacts);
    });
  }

  /** Load how many child runs it has, and of a queued run, why no worker takes it. What fails isn't shown. */
  async loadAround() {
    const { graph, queue, plan } = this.run;
    const isHere = (lane) => lane.graph === graph && lane.queue === queue && lane.plan === plan;
    try {
      const children = await get(runPath(this.id, "/children"));
      const unserved = isUnclaimed(this.run) && (await get("/workers")).unserved.find(isHere);
      this.around = { children, unserved };
    } catch {
      this.around = {};
    }
    refresh();
  }

  tick() {
    if (!document.hidden && !settings.paused && this.run && isWorking(this.run)) refresh();
  }

  questionForms() {
    const open = this.run.questions.slice(0, MOST_FORMS);
    if (this.about.read_only) return open.map(({ id, prompt }) => ({ view: () => h("p.prompt", { key: id }, prompt) }));
    for (const id of this.forms.keys()) if (!open.some((each) => each.id === id)) this.forms.delete(id);
    return open.map((question) => {
      if (!this.forms.has(question.id)) {
        const code = (value, by) => answerCode(this.id, question, value, by);
        this.forms.set(
          question.id,
          new QuestionForm(question, (value, by) => this.answer(question, value, by), { code }),
        );
      }
      return this.forms.get(question.id);
    });
  }

  async answer(question, value, by) {
    await post(runPath(this.id, "/answer"), { answers: { [question.id]: value }, ...(by && { by }) });
    say(`answered ${question.node}`);
    if (this.isStopped) return;
    this.isPinned = false;
    this.chosenRow = null;
    setQuery({ row: null });
    await this.reload();
  }

  view() {
    if (this.problem) return this.missing();
    if (!this.run) return h("main.run-page", h("p.faint.loading", "loading …"));
    if (!settings.paused || !this.shownAt) this.shownAt = serverNow();
    const damage = this.model.problem ?? this.run.problem ?? this.stream?.problem;
    return h(
      "main",
      { class: `run-page${this.isSheetOpen ? " sheet-open" : ""}` },
      runHeader(this.run, this.around, this.actions, this.about.read_only),
      damage && h("p.hint", `Its journal can't be read to its end: ${damage}`),
      h(
        "div.run-body",
        h(
          "div.run-main",
          { inert: this.hasSheet },
          tabs(VIEWS, this.viewName, (view) => this.show(view)),
          this.content(),
        ),
        this.inspector.view(this.run, this.questionForms(), this.about.read_only),
        h("button.sheet-close", { onclick: () => this.closeSheet() }, "back to the timeline"),
      ),
    );
  }

  content() {
    switch (this.viewName) {
      case "graph":
        return this.graph
          ? this.graph.view([...this.model.rows.values()], this.model.rows.get(this.timeline.selected), this.isPinned)
          : null;
      case "state":
        return this.state.view(this.run);
      case "events":
        return this.events.view();
      default:
        return this.timeline.view(this.run, this.shownAt);
    }
  }

  missing() {
    return h(
      "main.run-page.empty",
      h("h1", this.problem.status === 404 ? "This run isn't there" : "The run can't be shown"),
      h("p", this.problem.message),
      h("a.button", { href: pageUrl("runs") }, "All runs"),
      h("button", { onclick: () => location.reload() }, "Look again"),
    );
  }
}
