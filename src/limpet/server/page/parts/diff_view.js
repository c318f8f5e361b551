/** What changed between two states: by key, and inside of lists, dicts and texts. */

import { h } from "../core/dom.js";
import { count, size } from "../core/format.js";
import { isContainer, shortForm, sizeText, valueTree } from "./state_tree.js";

const SIGNS = { added: "+", removed: "−", changed: "~" };
const SHOWN = 40;

/** The changes of keys, as the API has them. `load(key)` fetches a change that was too large to be sent. */
export function diffView({ changes, load = null, tree }) {
  const keys = Object.keys(changes).sort();
  if (!keys.length) return h("p", { class: "faint" }, "nothing changed");
  return h(
    "ul",
    { class: "diff" },
    keys.map((key) => keyChange(key, changes[key], load, tree)),
  );
}

function keyChange(key, change, load, tree) {
  const hasSize = "before_size" in change || "after_size" in change;
  return h(
    "li",
    { key, class: `diff-key diff-${change.change}` },
    h("span", { class: "diff-sign", title: change.change }, SIGNS[change.change]),
    h("span", { class: "tree-key" }, key),
    hasSize ? sizes(key, change, load) : inside(key, change, tree),
  );
}

function sizes(key, change, load) {
  const before = change.before_size ?? null;
  const after = change.after_size ?? null;
  const words = [before, after].filter((each) => each !== null).map(size);
  return h("button", { class: "small", disabled: !load, onclick: () => load(key) }, `${words.join(" → ")}, show`);
}

function inside(key, change, tree) {
  if (change.change === "added") return valueTree(change.after, tree, `+${key}`);
  if (change.change === "removed") return h("span", { class: "diff-old" }, shortForm(change.before));
  return difference(change.before, change.after, key, tree);
}

/** How one value differs from another. */
export function difference(before, after, path, tree) {
  if (Array.isArray(before) && Array.isArray(after)) return listDifference(before, after, path, tree);
  if (isContainer(before) && isContainer(after) && !Array.isArray(before) && !Array.isArray(after)) {
    return dictDifference(before, after, path, tree);
  }
  if (typeof before === "string" && typeof after === "string" && (before + after).includes("\n")) {
    return partDifference(before.split("\n"), after.split("\n"), (line) => h("span", { class: "tree-words" }, line || " "));
  }
  return h(
    "span",
    { class: "diff-pair" },
    h("span", { class: "diff-old" }, shortForm(before)),
    h("span", { class: "diff-arrow", "aria-label": "became" }, " → "),
    isContainer(after) ? valueTree(after, tree, `=${path}`) : h("span", { class: "diff-new" }, shortForm(after)),
  );
}

function listDifference(before, after, path, tree) {
  const note = h("span", { class: "faint" }, sizeChange(before, after));
  return h("div", { class: "diff-inside" }, note, partDifference(before, after, (item) => itemView(item, path, tree)));
}

function itemView(item, path, tree) {
  return isContainer(item) ? h("span", { class: "tree-words" }, shortForm(item)) : valueTree(item, tree, path);
}

function sizeChange(before, after) {
  if (before.length === after.length) return sizeText(after);
  return `${count(before.length)} → ${sizeText(after)}`;
}

function dictDifference(before, after, path, tree) {
  const rows = [];
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const inner = `${path}\0${name}`;
    if (!(name in before)) rows.push(keyChange(name, { change: "added", after: after[name] }, null, tree));
    else if (!(name in after)) rows.push(keyChange(name, { change: "removed", before: before[name] }, null, tree));
    else if (!isSame(before[name], after[name])) {
      const part = difference(before[name], after[name], inner, tree);
      rows.push(
        h(
          "li",
          { key: name, class: "diff-key diff-changed" },
          h("span", { class: "diff-sign" }, SIGNS.changed),
          h("span", { class: "tree-key" }, name),
          part,
        ),
      );
    }
  }
  return h("ul", { class: "diff diff-inside" }, rows.slice(0, SHOWN), more(rows.length));
}

/** Lists or lines: what they have in common at both ends is left out. */
function partDifference(before, after, view) {
  let start = 0;
  while (start < before.length && start < after.length && isSame(before[start], after[start])) start += 1;
  let end = 0;
  const shorter = Math.min(before.length, after.length) - start;
  while (end < shorter && isSame(before[before.length - 1 - end], after[after.length - 1 - end])) end += 1;
  const removed = before.slice(start, before.length - end);
  const added = after.slice(start, after.length - end);
  return h(
    "div",
    { class: "diff-parts" },
    start > 0 && h("div", { class: "faint" }, `⋯ ${count(start)} the same`),
    removed.slice(0, SHOWN).map((each) => h("div", { class: "diff-part diff-removed" }, "− ", view(each))),
    more(removed.length),
    added.slice(0, SHOWN).map((each) => h("div", { class: "diff-part diff-added" }, "+ ", view(each))),
    more(added.length),
    end > 0 && h("div", { class: "faint" }, `⋯ ${count(end)} the same`),
  );
}

function more(length) {
  return length > SHOWN && h("div", { class: "faint" }, `⋯ ${count(length - SHOWN)} more`);
}

/** Whether two values are the same. */
export function isSame(one, other) {
  if (one === other) return true;
  if (!isContainer(one) || !isContainer(other) || Array.isArray(one) !== Array.isArray(other)) return false;
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => key in other && isSame(one[key], other[key]));
}
