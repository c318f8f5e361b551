/** The head of a run: what it is, how it is, and what can be done with it. */

import { runPath, urlOf } from "../core/api.js";
import { h } from "../core/dom.js";
import { count, processName, shortId, span } from "../core/format.js";
import { pageUrl } from "../core/router.js";
import { copy } from "../parts/copy.js";
import { statusLabel } from "../parts/status_mark.js";
import { timeView } from "../parts/time.js";
import { isOver } from "../runs/runs_table.js";
import { actionsFor } from "./run_actions.js";

/** What a run that has stopped needs. */
const PRIMARY = new Set(["approve", "retry", "resume"]);

/** The head. `actions` opens the dialogs. */
export function runHeader(run, children, actions, isReadOnly) {
  return h(
    "header",
    { class: "run-header" },
    h(
      "div",
      { class: "run-title" },
      h("a", { class: "faint", href: pageUrl("graphs", run.graph) }, run.graph),
      h("span", { class: "faint", "aria-hidden": "true" }, "/"),
      h("h1", { title: run.run_id }, h("button", { class: "id", title: "copy the id", onclick: () => copy(run.run_id, "copied the id") }, shortId(run.run_id, 40))),
      statusLabel(run.status),
    ),
    h("div", { class: "run-facts" }, facts(run, children)),
    h("div", { class: "run-actions" }, buttons(run, actions, isReadOnly)),
  );
}

function facts(run, children) {
  const parts = [
    h("span", {}, isOver(run) ? "ended " : "changed ", timeView(run.updated)),
    h("span", {}, "created ", timeView(run.created)),
    isOver(run) && h("span", {}, span(run.updated - run.created)),
    h("span", {}, count(run.step, "step")),
    run.queue !== "default" && h("span", {}, `queue ${run.queue}`),
    run.held_by && run.status === "running" && h("span", { title: run.held_by }, `by ${processName(run.held_by)}`),
    run.deadline && !isOver(run) && h("span", {}, "deadline ", timeView(run.deadline)),
    run.parent && h("span", {}, "started by ", runLink(run.parent)),
    run.forked_from && h("span", {}, "forked from ", runLink(run.forked_from.replace(/@\d+$/, ""))),
    children.length > 0 && h("a", { href: `${pageUrl("runs")}?q=${encodeURIComponent(`parent:"${run.run_id}"`)}` }, count(children.length, "child run")),
    ...run.tags.map((tag) => h("a", { class: "tag", href: `${pageUrl("runs")}?q=${encodeURIComponent(`tag:"${tag}"`)}` }, tag)),
  ];
  return parts.filter(Boolean);
}

function runLink(id) {
  return h("a", { href: pageUrl("runs", id), title: id }, shortId(id));
}

function buttons(run, actions, isReadOnly) {
  const download = h("a", { class: "button", href: urlOf(runPath(run.run_id, "/export")), download: `${run.run_id}.run` }, "export");
  if (isReadOnly) return [download];
  const { main, more } = actionsFor(run);
  return [
    main.map((name) => h("button", { key: name, class: PRIMARY.has(name) ? "primary" : "", onclick: () => actions[name]() }, name)),
    h(
      "details",
      { class: "menu", onkeydown: (event) => event.key === "Escape" && event.currentTarget.removeAttribute("open") },
      h("summary", { class: "button", "aria-label": "more actions" }, "⋯"),
      h(
        "div",
        { class: "menu-items", onclick: (event) => event.currentTarget.parentElement.removeAttribute("open") },
        more.map((name) => h("button", { key: name, onclick: () => actions[name]() }, name)),
        h("a", { class: "menu-link", href: urlOf(runPath(run.run_id, "/export")), download: `${run.run_id}.run` }, "export"),
      ),
    ),
  ];
}
