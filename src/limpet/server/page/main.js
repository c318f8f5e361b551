/**
 * Opens the page that the address names, inside of the frame: the logo, the way to other pages, the switches. Browsers
 * without the token get a page that asks for it, or that answers a single question by its link.
 */

import { get, logIn, onLoggedOut, post } from "./core/api.js";
import { h, refresh, setView } from "./core/dom.js";
import { go, nextTheme, nextZone, pageUrl, ROOT, settings, startRouter, useKeys } from "./core/reader.js";
import { GraphPage, GraphsPage } from "./pages/graphs.js";
import { SchedulesPage, WorkersPage } from "./pages/workers.js";
import { setStore } from "./parts/code.js";
import { attempt, closeDialog, complain, giveFocus, noticesView, openDialog, withDialog } from "./parts/dialog.js";
import { QuestionForm } from "./parts/forms.js";
import { shortId, timeView } from "./parts/labels.js";
import { RunPage } from "./run/run_page.js";
import { ComparePage } from "./run/views.js";
import { RunsPage } from "./runs/runs_page.js";

/** Milliseconds after which relative times are shown again. */
const TICK = 10000;

/** Milliseconds after which a server that didn't answer is asked again. */
const RETRY = 3000;

let about = null;
let page = null;
let shownPath = null;
let shownParts = [];

/** The page of a path. */
function pageFor(parts) {
  const [first, second] = parts;
  if (first === "answer") return AnswerPage;
  if (first === "compare") return ComparePage;
  if (first === "schedules") return SchedulesPage;
  if (first === "workers") return WorkersPage;
  if (first === "graphs") return second === undefined ? GraphsPage : GraphPage;
  return second === undefined ? RunsPage : RunPage;
}

async function open(place) {
  const { parts } = place;
  const path = parts.join("\0") || "runs";
  closeDialog();
  if (page && path === shownPath && page.openPlace) {
    page.openPlace(place);
    refresh();
    return;
  }
  const Page = pageFor(parts);
  shownPath = path;
  shownParts = parts;
  if (Page !== AnswerPage && !about) {
    about = await loadAbout();
    if (shownPath !== path) return;
    if (!about) {
      if (!isForStrangers()) setTimeout(() => shownPath === path && open(place), RETRY);
      return;
    }
    setStore(about.store);
  }
  show(new Page({ ...place, about }));
}

function show(next) {
  const before = document.activeElement;
  const focusPage = () => [before, document.body].includes(document.activeElement) && giveFocus(null);
  if (page) requestAnimationFrame(() => requestAnimationFrame(focusPage)); // when it is shown
  page?.stop();
  page = next;
  settings.paused = false;
  document.title = `${page.title} · Limpet`;
  scrollTo(0, 0);
  page.start();
  refresh();
}

async function loadAbout() {
  try {
    const found = await get("/about");
    settings.offset = found.now - Date.now() / 1000;
    return found;
  } catch (error) {
    complain(error);
    refresh();
    return null;
  }
}

function view() {
  return h(
    "div.frame",
    withDialog(
      isForStrangers() ? null : topBar(page, shownParts[0] ?? "runs", about),
      page ? page.view() : h("main"),
    ),
    noticesView(),
  );
}

/** Whether the page is one for those without the token, from which nothing leads to others. */
function isForStrangers() {
  return page?.isPublic || page instanceof LoginPage;
}

const PAGES = ["runs", "graphs", "schedules", "workers"];
const LOGO = new URL("./logo.svg", import.meta.url).pathname;
const LIVE_WORDS = { on: "live", wait: "connecting", off: "ended", lost: "connection lost" };

/** The bar on top. `page` is the one that is open. */
function topBar(page, current, about) {
  return h(
    "header.top",
    h("a.brand", { href: `${ROOT}/` }, h("img", { src: LOGO, alt: "", width: 26, height: 26 }), h("span", "Limpet")),
    h(
      "nav",
      { "aria-label": "pages" },
      PAGES.map((name) =>
        h("a", { key: name, href: pageUrl(name), "aria-current": name === current ? "page" : null }, name),
      ),
    ),
    h("span.store.faint", { title: about?.store }, about && shortId(about.store, 40), about?.read_only && " · read-only"),
    h(
      "div.switches",
      page?.checkLive && liveSwitch(page),
      h(
        "button.plain.wide",
        {
          key: "zone", // so that a click as the switch before it appears isn't taken for one on another
          title: `times: ${settings.zone === "utc" ? "UTC" : "local"}; click to switch`,
          onclick: () => (nextZone(), refresh()),
        },
        settings.zone === "utc" ? "UTC" : "local",
      ),
      h(
        "button.plain",
        {
          key: "theme",
          "aria-label": `theme: ${settings.theme}`,
          title: `theme: ${settings.theme}; click to switch`,
          onclick: () => (nextTheme(), refresh()),
        },
        themeSign(),
      ),
      h("button.plain.help", { key: "help", "aria-label": "help", title: "keys and help (?)", onclick: openHelp }, "?"),
    ),
  );
}

function liveSwitch(page) {
  const state = settings.paused ? "paused" : page.liveState;
  return h(
    "button",
    {
      class: `plain live live-${state}`,
      "aria-pressed": String(!settings.paused),
      title: settings.paused ? "click to continue" : "click to pause",
      onclick: () => toggleLive(page),
    },
    h("span.live-dot", { "aria-hidden": "true" }),
    h("span.live-word", LIVE_WORDS[state] ?? state),
  );
}

function filterRuns() {
  if (isForStrangers()) return;
  go(pageUrl("runs"));
  requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById("filter")?.focus()));
}

/** Close menus that are open, unless the click was in one. */
function closeMenus(event) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
}

function toggleLive(page) {
  settings.paused = !settings.paused;
  page.checkLive();
  refresh();
}

/** A disc: empty for light, full for dark, half of each for what the system has. */
function themeSign() {
  return h(
    "svg",
    { viewBox: "-8 -8 16 16", width: 16, height: 16, "aria-hidden": "true", class: `theme-${settings.theme}` },
    h("circle", { r: 6 }),
    settings.theme === "system" && h("path", { d: "M0 -6A6 6 0 1 0 0 6Z" }),
  );
}

const KEYS = [
  ["/", "filter the runs"],
  ["j, k", "the next, the one before"],
  ["Enter", "open"],
  ["x", "select the run"],
  ["Esc", "back, close"],
  ["r", "retry or resume the run"],
  ["f", "fork the run"],
  ["← →", "close or open a branch"],
  ["1 – 4", "timeline, graph, state, events"],
  ["?", "this help"],
];

/** Show the keys. */
function openHelp() {
  const view = () => [
    h(
      "dl.keys",
      KEYS.map(([key, about]) => [h("dt", { key: `${key}-k` }, h("kbd", key)), h("dd", { key: `${key}-a` }, about)]),
    ),
  ];
  openDialog({ title: "Keys", view });
}

/** Asks for the token. */
class LoginPage {
  title = "Token";

  constructor({ whenDone }) {
    this.whenDone = whenDone;
    this.token = "";
    this.problem = "";
  }

  start() {}

  stop() {}

  async submit(event) {
    event.preventDefault();
    this.problem = "";
    await attempt(async () => {
      await logIn(this.token.trim());
      this.whenDone();
    }, this);
  }

  view() {
    return h(
      "main.answer-page",
      h(
        "form.panel",
        { onsubmit: (event) => this.submit(event) },
        h("h1", "A token is needed"),
        h("p", "Open the URL that ", h("code", "limpet serve"), " has printed, or give its token:"),
        h("input", {
          type: "password",
          "aria-label": "token",
          autocomplete: "off",
          autofocus: true,
          value: this.token,
          oninput: (event) => (this.token = event.target.value),
        }),
        this.problem && h("p.field-problem", { role: "alert" }, this.problem),
        h("div.dialog-actions", h("button.primary", "Open")),
      ),
    );
  }
}

/** Answers the question of a link. */
class AnswerPage {
  title = "A question";
  isPublic = true;

  constructor({ parts }) {
    this.path = `/questions/${encodeURIComponent(parts[1] ?? "")}`;
  }

  start() {
    return attempt(async () => {
      this.found = await get(this.path);
      if (this.found.question) {
        this.form = new QuestionForm(this.found.question, (value) => this.answer(value), { asksName: false });
      }
    }, this);
  }

  stop() {}

  async answer(value) {
    await post(`${this.path}/answer`, { value });
    this.isAnswered = true;
    refresh();
  }

  view() {
    return h("main.answer-page", h("div.panel", this.content()));
  }

  content() {
    if (this.problem) return [h("h1", "This link can't be used"), h("p", this.problem)];
    if (!this.found) return h("p.faint", "loading …");
    if (this.isAnswered) return [h("h1", "Thank you"), h("p", "Your answer is saved. You can close this page.")];
    if (!this.form) return [h("h1", "Answered already"), h("p", "This question is no longer open.")];
    return [
      h("h1", "A question"),
      h("p.faint", `${this.found.graph} · ${this.found.run_id}`),
      this.form.view(),
      h("p.faint", "This link ends ", timeView(this.found.expires)),
    ];
  }
}

onLoggedOut(() => {
  if (!isForStrangers()) show(new LoginPage({ whenDone: () => location.reload() }));
});
useKeys({
  "?": openHelp,
  "/": filterRuns,
  Escape: () => !isForStrangers() && go(pageUrl(shownParts.length > 1 ? shownParts[0] : "runs")),
});
document.addEventListener("click", closeMenus);
setView(view);
setInterval(() => !document.hidden && refresh(), TICK);
startRouter(open);
