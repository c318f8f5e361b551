/** Values as a tree that opens on a click, and what changed between two states. */

import { textOf } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { count, size } from "./labels.js";

const LONG_TEXT = 240;
const PAGE = 100;
const ROW_OF_WORDS = 60;
/** Characters around those that differ. */
const AROUND = 20;

/** What a reader has opened in a tree. Keep one for each tree that is shown. */
export class TreeState {
  constructor() {
    this.open = new Map();
  }

  isOpen(path, usually) {
    return this.open.get(path) ?? usually;
  }

  set(path, value) {
    this.open.set(path, value);
    refresh();
  }
}

/** The values of keys. `large` has the sizes of those that were left out, and `load(key)` fetches one. */
export function stateTree({ values, large = {}, load = null, tree }) {
  const keys = [...Object.keys(values), ...Object.keys(large)].sort();
  if (!keys.length) return h("p.faint", "no values");
  return h(
    "ul.tree",
    keys.map((key) =>
      Object.hasOwn(values, key) ? entry(key, values[key], key, tree, 0) : unloaded(key, large[key], load),
    ),
  );
}

/** One value, without a name. */
export function valueTree(value, tree, path = "") {
  if (!isContainer(value) || isEmpty(value)) return leaf(value, path, tree);
  return h("ul.tree", items(value, path, tree, 0));
}

/** Put values that were loaded with those that are shown: they are no longer among the `large` ones. */
export function putLarge(loaded, values, large) {
  for (const key of Object.keys(loaded)) delete large[key];
  Object.assign(values, loaded);
}

function unloaded(key, bytes, load) {
  return h(
    "li",
    { key, class: "tree-row" },
    h("span.tree-key", key),
    h("button.small", { disabled: !load, onclick: () => load(key) }, `${size(bytes)}, show`),
  );
}

function entry(name, value, path, tree, depth) {
  const label = h("span.tree-key", name);
  if (!isContainer(value) || isEmpty(value)) {
    return h("li", { key: path, class: "tree-row" }, label, leaf(value, path, tree));
  }
  const isOpen = tree.isOpen(path, depth === 0 && shortForm(value).length <= ROW_OF_WORDS * 4 && sizeOf(value) <= 12);
  return h(
    "li",
    { key: path },
    h(
      "button.tree-toggle",
      { "aria-expanded": String(isOpen), onclick: () => tree.set(path, !isOpen) },
      h("span.tree-arrow", { "aria-hidden": "true" }, isOpen ? "▾" : "▸"),
      label,
      h("span.faint", isOpen ? sizeText(value) : shortForm(value)),
    ),
    isOpen && h("ul.tree-inner", items(value, path, tree, depth + 1)),
  );
}

function items(value, path, tree, depth) {
  const names = Array.isArray(value) ? value.keys() : Object.keys(value);
  const all = [...names];
  const shown = tree.isOpen(`${path}\0more`, PAGE);
  const rows = all.slice(0, shown).map((name) => entry(String(name), value[name], `${path}\0${name}`, tree, depth));
  if (all.length > shown) {
    const more = () => tree.set(`${path}\0more`, shown + PAGE * 10);
    rows.push(h("li", { key: "more" }, h("button.small", { onclick: more }, `${count(all.length - shown)} more`)));
  }
  return rows;
}

function leaf(value, path, tree) {
  if (typeof value === "string") return textLeaf(value, path, tree);
  if (isContainer(value)) return h("span.faint", shortForm(value));
  return h("span.tree-word", pythonWord(value));
}

function textLeaf(value, path, tree) {
  const isLong = value.length > LONG_TEXT;
  const isOpen = tree.isOpen(`${path}\0text`, false);
  const shown = isLong && !isOpen ? `${value.slice(0, LONG_TEXT)}…` : value;
  const toggle = () => tree.set(`${path}\0text`, !isOpen);
  return h(
    "span.tree-text",
    h("span.tree-words", shown),
    isLong && h("button.small", { onclick: toggle }, isOpen ? "less" : `all ${count(value.length)} characters`),
  );
}

/** Whether a value has values inside. */
function isContainer(value) {
  return typeof value === "object" && value !== null;
}

function sizeOf(value) {
  return Array.isArray(value) ? value.length : Object.keys(value).length;
}

function isEmpty(value) {
  return sizeOf(value) === 0;
}

/** How many things are in a list or a dict. */
function sizeText(value) {
  return count(sizeOf(value), Array.isArray(value) ? "item" : "key");
}

/** A value in a few words. */
export function shortForm(value) {
  if (typeof value === "string")
    return JSON.stringify(value.length > ROW_OF_WORDS ? `${value.slice(0, ROW_OF_WORDS)}…` : value);
  if (!isContainer(value)) return pythonWord(value);
  if (isEmpty(value)) return Array.isArray(value) ? "[]" : "{}";
  const parts = [];
  let length = 0;
  for (const [name, each] of Object.entries(value)) {
    const text = isContainer(each) ? (Array.isArray(each) ? "[…]" : "{…}") : shortForm(each);
    parts.push(Array.isArray(value) ? text : `${name}: ${text}`);
    length += parts[parts.length - 1].length + 2;
    if (length > ROW_OF_WORDS && parts.length < sizeOf(value)) {
      parts.push("…");
      break;
    }
  }
  const inner = parts.join(", ");
  return Array.isArray(value) ? `[${inner}] · ${sizeText(value)}` : `{${inner}}`;
}

function pythonWord(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  return String(value);
}

const SIGNS = { added: "+", removed: "−", changed: "~" };
const SHOWN = 40;

/** The changes of keys, as the API has them. `load(key)` fetches a change that was too large to be sent. */
export function diffView({ changes, load = null, tree }) {
  const keys = Object.keys(changes).sort();
  if (!keys.length) return h("p.faint", "nothing changed");
  return h(
    "ul.diff",
    keys.map((key) => keyChange(key, changes[key], load, tree)),
  );
}

function keyChange(key, change, load, tree, path = key) {
  const hasSize = "before_size" in change || "after_size" in change;
  return h(
    "li",
    { key, class: `diff-key diff-${change.change}` },
    h("span.diff-sign", { title: change.change }, SIGNS[change.change]),
    h("span.tree-key", key),
    hasSize ? sizes(key, change, load) : inside(path, change, tree),
  );
}

function sizes(key, change, load) {
  const before = change.before_size ?? null;
  const after = change.after_size ?? null;
  const words = [before, after].filter((each) => each !== null).map(size);
  return h("button.small", { disabled: !load, onclick: () => load(key) }, `${words.join(" → ")}, show`);
}

function inside(path, { change, before, after }, tree) {
  if (change === "added") return valueTree(after, tree, `+${path}`);
  if (change === "removed") return h("span.diff-old", shortForm(before));
  return difference(before, after, path, tree);
}

/** How one value differs from another. */
function difference(before, after, path, tree) {
  if (Array.isArray(before) && Array.isArray(after)) return listDifference(before, after, path, tree);
  if (isContainer(before) && isContainer(after) && !Array.isArray(before) && !Array.isArray(after)) {
    return dictDifference(before, after, path, tree);
  }
  const areTexts = typeof before === "string" && typeof after === "string";
  if (areTexts && (before + after).includes("\n")) {
    return partDifference(before.split("\n"), after.split("\n"), (line) => h("span.tree-words", line || " "));
  }
  const isLong = areTexts && Math.max(before.length, after.length) > ROW_OF_WORDS;
  const isOpen = tree.isOpen(`~${path}`, !isLong);
  const [old, now] = isOpen ? [before, after].map(areTexts ? textOf : shortForm) : excerpts(before, after);
  return h(
    "span.diff-pair",
    h("span.diff-old", old),
    h("span.diff-arrow", { "aria-label": "became" }, " → "),
    isContainer(after) ? valueTree(after, tree, `=${path}`) : h("span.diff-new", now),
    !isOpen && h("button.small", { onclick: () => tree.set(`~${path}`, true) }, "all characters"),
  );
}

/** What two texts have where they differ, and a few characters around that. */
function excerpts(before, after) {
  const [start, end] = commonEnds(before, after);
  return [before, after].map((text) => {
    const first = Math.max(start - AROUND, 0);
    const last = Math.min(text.length - end + AROUND, first + ROW_OF_WORDS * 2);
    return textOf(`${first ? "…" : ""}${text.slice(first, last)}${last < text.length ? "…" : ""}`);
  });
}

function listDifference(before, after, path, tree) {
  // Each item that is a dict or a list differs in itself.
  if (before.length === after.length && [...before, ...after].every(isContainer)) {
    return dictDifference(before, after, path, tree);
  }
  const note = h("span.faint", sizeChange(before, after));
  return h(
    "div.diff-inside",
    note,
    partDifference(before, after, (item) => itemView(item, path, tree)),
  );
}

function itemView(item, path, tree) {
  return isContainer(item) ? h("span.tree-words", shortForm(item)) : valueTree(item, tree, path);
}

function sizeChange(before, after) {
  if (before.length === after.length) return sizeText(after);
  return `${count(before.length)} → ${sizeText(after)}`;
}

function dictDifference(before, after, path, tree) {
  const rows = [];
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    let change = "changed";
    if (!Object.hasOwn(before, name)) change = "added";
    else if (!Object.hasOwn(after, name)) change = "removed";
    else if (isSame(before[name], after[name])) continue;
    const values = { change, before: before[name], after: after[name] };
    rows.push(keyChange(name, values, null, tree, `${path}\0${name}`));
  }
  return h("ul.diff.diff-inside", rows.slice(0, SHOWN), more(rows.length));
}

/** Lists or lines: what they have in common at both ends is left out. */
function partDifference(before, after, view) {
  const [start, end] = commonEnds(before, after);
  const removed = before.slice(start, before.length - end);
  const added = after.slice(start, after.length - end);
  return h(
    "div.diff-parts",
    start > 0 && h("div.faint", `⋯ ${count(start)} the same`),
    removed.slice(0, SHOWN).map((each) => h("div.diff-part.diff-removed", "− ", view(each))),
    more(removed.length),
    added.slice(0, SHOWN).map((each) => h("div.diff-part.diff-added", "+ ", view(each))),
    more(added.length),
    end > 0 && h("div.faint", `⋯ ${count(end)} the same`),
  );
}

/** How many parts two lists or texts have in common at their beginning, and at their end. */
function commonEnds(before, after) {
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && isSame(before[start], after[start])) start += 1;
  let end = 0;
  while (end < shorter - start && isSame(before.at(-1 - end), after.at(-1 - end))) end += 1;
  return [start, end];
}

function more(length) {
  return length > SHOWN && h("div.faint", `⋯ ${count(length - SHOWN)} more`);
}

/** Whether two values are the same. */
function isSame(one, other) {
  if (one === other) return true;
  if (!isContainer(one) || !isContainer(other) || Array.isArray(one) !== Array.isArray(other)) return false;
  const keys = Object.keys(one);
  return (
    keys.length === Object.keys(other).length &&
    keys.every((key) => Object.hasOwn(other, key) && isSame(one[key], other[key]))
  );
}
