/** What is around every page: the logo, the way to other pages, and the switches. */

import { ROOT } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { pageUrl } from "../core/router.js";
import { nextTheme, nextZone, settings } from "../core/settings.js";
import { openDialog } from "./dialog.js";

const PAGES = ["runs", "graphs", "schedules", "workers"];
const LOGO = new URL("../logo.svg", import.meta.url).pathname;
const LIVE_WORDS = {
  on: "live",
  off: "not live",
  lost: "connection lost, trying again",
};

/** The bar on top. `page` is the one that is open. */
export function topBar(page, current, about) {
  return h(
    "header",
    { class: "top" },
    h("a", { class: "brand", href: `${ROOT}/` }, h("img", { src: LOGO, alt: "", width: 26, height: 26 }), h("span", {}, "Limpet")),
    h(
      "nav",
      { "aria-label": "pages" },
      PAGES.map((name) => h("a", { key: name, href: pageUrl(name), "aria-current": name === current ? "page" : null }, name)),
    ),
    h("span", { class: "store", title: about?.store ?? "" }, about?.read_only ? "read-only" : ""),
    h(
      "div",
      { class: "switches" },
      page?.checkLive && liveSwitch(page),
      h("button", { class: "plain wide", title: `times: ${settings.zone === "utc" ? "UTC" : "local"}; click to switch`, onclick: () => (nextZone(), refresh()) }, settings.zone === "utc" ? "UTC" : "local"),
      h("button", { class: "plain", "aria-label": `theme: ${settings.theme}`, title: `theme: ${settings.theme}; click to switch`, onclick: () => (nextTheme(), refresh()) }, themeSign()),
      h("button", { class: "plain", "aria-label": "help", title: "keys and help (?)", onclick: openHelp }, "?"),
    ),
  );
}

function liveSwitch(page) {
  const state = settings.paused ? "paused" : page.liveState;
  return h(
    "button",
    { class: `plain live live-${state}`, "aria-pressed": String(!settings.paused), title: settings.paused ? "paused; click to continue" : `${LIVE_WORDS[state] ?? state}; click to pause`, onclick: () => toggleLive(page) },
    h("span", { class: "live-dot", "aria-hidden": "true" }),
    state === "on" ? "live" : state,
  );
}

function toggleLive(page) {
  settings.paused = !settings.paused;
  page.checkLive();
  refresh();
}

function themeSign() {
  const paths = {
    system: "M0 -6A6 6 0 1 0 0 6Z",
    light: "M0 0",
    dark: "M2 -5.6A6 6 0 1 0 5.6 2A5 5 0 0 1 2 -5.6Z",
  };
  return h(
    "svg",
    { viewBox: "-8 -8 16 16", width: 16, height: 16, "aria-hidden": "true", class: "theme-sign" },
    settings.theme !== "dark" && h("circle", { r: 6 }),
    h("path", { d: paths[settings.theme] }),
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

/** Show them. */
export function openHelp() {
  const view = () => [
    h("dl", { class: "keys" }, KEYS.map(([key, about]) => [h("dt", { key: `${key}-k` }, h("kbd", {}, key)), h("dd", { key: `${key}-a` }, about)])),
    h("p", { class: "faint" }, "Everything here is also on the command line (limpet --help), and in Python (limpet.Runs)."),
  ];
  openDialog({ title: "Keys", view });
}
