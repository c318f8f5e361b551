/** Opens the page that the address names, inside of the frame. */

import { get, onLoggedOut } from "./core/api.js";
import { h, refresh, setView } from "./core/dom.js";
import { useKeys } from "./core/keyboard.js";
import { startRouter } from "./core/router.js";
import { ComparePage } from "./pages/compare_page.js";
import { GraphPage, GraphsPage } from "./pages/graphs.js";
import { AnswerPage, LoginPage } from "./pages/without_token.js";
import { SchedulesPage, WorkersPage } from "./pages/workers.js";
import { closeDialog, complain, dialogView, noticesView } from "./parts/dialog.js";
import { openHelp, topBar } from "./parts/frame.js";
import { RunPage } from "./run/run_page.js";
import { RunsPage } from "./runs/runs_page.js";

/** Milliseconds after which relative times are shown again. */
const TICK = 10000;

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
    if (!about || shownPath !== path) return;
  }
  show(new Page({ ...place, about }));
}

function show(next) {
  page?.stop();
  page = next;
  document.title = `${page.title} · Limpet`;
  scrollTo(0, 0);
  page.start();
  refresh();
}

async function loadAbout() {
  try {
    const found = await get("/about");
    return { ...found, offset: found.now - Date.now() / 1000 };
  } catch (error) {
    complain(error);
    refresh();
    return null;
  }
}

function view() {
  return h(
    "div",
    { class: "frame" },
    page?.isPublic || page instanceof LoginPage ? null : topBar(page, shownParts[0] ?? "runs", about),
    page ? page.view() : h("main", {}),
    dialogView(),
    noticesView(),
  );
}

onLoggedOut(() => {
  if (!page?.isPublic && !(page instanceof LoginPage)) show(new LoginPage({ whenDone: () => location.reload() }));
});
useKeys({ "?": openHelp });
setView(view);
setInterval(() => !document.hidden && refresh(), TICK);
startRouter(open);
