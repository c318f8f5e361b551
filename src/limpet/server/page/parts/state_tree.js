/** Values as a tree that opens on a click: exact numbers, long texts shortened, large values fetched when asked for. */

import { h, refresh } from "../core/dom.js";
import { count, size } from "../core/format.js";

const LONG_TEXT = 240;
const PAGE = 100;
const ROW_OF_WORDS = 60;

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
  if (!keys.length) return h("p", { class: "faint" }, "no values");
  return h(
    "ul",
    { class: "tree", role: "tree" },
    keys.map((key) => (key in values ? entry(key, values[key], key, tree, 0) : unloaded(key, large[key], load))),
  );
}

/** One value, without a name. */
export function valueTree(value, tree, path = "") {
  if (!isContainer(value)) return leaf(value, path, tree);
  return h("ul", { class: "tree", role: "tree" }, items(value, path, tree, 0));
}

function unloaded(key, bytes, load) {
  return h(
    "li",
    { key, class: "tree-row" },
    h("span", { class: "tree-key" }, key),
    h("button", { class: "small", disabled: !load, onclick: () => load(key) }, `${size(bytes)}, show`),
  );
}

function entry(name, value, path, tree, depth) {
  const label = h("span", { class: "tree-key" }, name);
  if (!isContainer(value) || isEmpty(value)) {
    return h("li", { key: path, class: "tree-row" }, label, leaf(value, path, tree));
  }
  const isOpen = tree.isOpen(path, depth === 0 && shortForm(value).length <= ROW_OF_WORDS * 4 && sizeOf(value) <= 12);
  return h(
    "li",
    { key: path },
    h(
      "button",
      { class: "tree-toggle", "aria-expanded": String(isOpen), onclick: () => tree.set(path, !isOpen) },
      h("span", { class: "tree-arrow", "aria-hidden": "true" }, isOpen ? "▾" : "▸"),
      label,
      h("span", { class: "faint" }, isOpen ? sizeText(value) : shortForm(value)),
    ),
    isOpen && h("ul", { class: "tree-inner" }, items(value, path, tree, depth + 1)),
  );
}

function items(value, path, tree, depth) {
  const names = Array.isArray(value) ? value.keys() : Object.keys(value);
  const all = [...names];
  const shown = tree.isOpen(`${path}\0more`, PAGE);
  const rows = all.slice(0, shown).map((name) => entry(String(name), value[name], `${path}\0${name}`, tree, depth));
  if (all.length > shown) {
    const more = () => tree.set(`${path}\0more`, shown + PAGE * 10);
    rows.push(h("li", { key: "more" }, h("button", { class: "small", onclick: more }, `${count(all.length - shown)} more`)));
  }
  return rows;
}

function leaf(value, path, tree) {
  if (typeof value === "string") return textLeaf(value, path, tree);
  if (value === null) return h("span", { class: "tree-none" }, "None");
  if (typeof value === "boolean") return h("span", { class: "tree-word" }, value ? "True" : "False");
  if (isContainer(value)) return h("span", { class: "faint" }, Array.isArray(value) ? "[]" : "{}");
  return h("span", { class: "tree-number" }, String(value));
}

function textLeaf(value, path, tree) {
  const isLong = value.length > LONG_TEXT;
  const isOpen = tree.isOpen(`${path}\0text`, false);
  const shown = isLong && !isOpen ? `${value.slice(0, LONG_TEXT)}…` : value;
  const toggle = () => tree.set(`${path}\0text`, !isOpen);
  return h(
    "span",
    { class: "tree-text" },
    h("span", { class: "tree-words" }, shown),
    isLong && h("button", { class: "small", onclick: toggle }, isOpen ? "less" : `all ${count(value.length)} characters`),
  );
}

/** Whether a value has values inside. */
export function isContainer(value) {
  return typeof value === "object" && value !== null;
}

function sizeOf(value) {
  return Array.isArray(value) ? value.length : Object.keys(value).length;
}

function isEmpty(value) {
  return sizeOf(value) === 0;
}

/** How many things are in a list or a dict. */
export function sizeText(value) {
  return count(sizeOf(value), Array.isArray(value) ? "item" : "key");
}

/** A value in a few words. */
export function shortForm(value) {
  if (typeof value === "string") return JSON.stringify(value.length > ROW_OF_WORDS ? `${value.slice(0, ROW_OF_WORDS)}…` : value);
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
