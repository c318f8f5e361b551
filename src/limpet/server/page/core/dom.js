/**
 * Elements as plain data, and `render`, which changes the document as little as it can to show them.
 *
 * Texts are only ever set as text, so no value can become an element. A child with a `key` keeps its element when it
 * moves, so that focus and scroll positions stay.
 */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate", "open"]);
const REFUSED = /^(innerhtml|outerhtml|srcdoc|style)$/i;
const PLACES = /^(href|src|action|formaction|xlink:href)$/i;

/** An element or a text. What a server sends is never one, whatever it looks like. */
class Shown {
  el = null;

  constructor(parts) {
    Object.assign(this, parts);
  }
}

/** An element, its classes, its properties if it has any, and its children: `h("p.faint", { title }, "text")`. */
export function h(selector, ...rest) {
  const props = isProperties(rest[0]) ? rest.shift() : {};
  const [tag, ...classes] = selector.split(".");
  if (classes.length) props.class = [...classes, props.class].filter(Boolean).join(" ");
  return new Shown({ tag, key: props.key, props, children: nodesOf(rest) });
}

function isProperties(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Shown);
}

/** Show a node as the only content of an element. */
function render(container, node) {
  container.shown = patchChildren(container, container.shown ?? [], nodesOf([node]), false);
}

function nodesOf(children) {
  const nodes = [];
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    if (child instanceof Shown) nodes.push(child);
    else nodes.push(new Shown({ tag: "#text", text: String(child) }));
  }
  return nodes;
}

function patchChildren(parent, old, next, isSvg) {
  const keyed = new Map();
  const others = [];
  for (const node of old) {
    if (node.key === undefined || keyed.has(node.key)) others.push(node);
    else keyed.set(node.key, node);
  }
  for (const node of next) {
    const match = takeMatch(node, keyed, others);
    if (match) update(match, node, isSvg);
    else create(node, isSvg);
  }
  for (const node of [...keyed.values(), ...others]) node.el.remove();
  let place = parent.firstChild;
  for (const node of next) {
    if (node.el === place) place = place.nextSibling;
    else parent.insertBefore(node.el, place);
    node.props?.onshow?.(node.el);
  }
  return next;
}

/** The node that was shown before in place of this one, taken out of those that are left. */
function takeMatch(node, keyed, others) {
  if (node.key !== undefined) {
    const match = keyed.get(node.key);
    if (!match || match.tag !== node.tag) return null;
    keyed.delete(node.key);
    return match;
  }
  const index = others.findIndex((each) => each.tag === node.tag);
  return index < 0 ? null : others.splice(index, 1)[0];
}

function create(node, isSvg) {
  if (node.tag === "#text") {
    node.el = document.createTextNode(node.text);
    return;
  }
  const inSvg = isSvg || node.tag === "svg";
  node.el = inSvg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  const { value, ...first } = node.props;
  for (const [name, each] of Object.entries(first)) setProperty(node.el, name, each);
  patchChildren(node.el, [], node.children, inSvg);
  if (value !== undefined) setProperty(node.el, "value", value); // a select needs its options first
}

function update(old, node, isSvg) {
  node.el = old.el;
  if (node.tag === "#text") {
    if (old.text !== node.text) node.el.data = node.text;
    return;
  }
  for (const name of Object.keys(old.props)) {
    if (!(name in node.props)) setProperty(node.el, name, null);
  }
  patchChildren(node.el, old.children, node.children, isSvg || node.tag === "svg");
  for (const [name, value] of Object.entries(node.props)) {
    if (old.props[name] !== value || (PROPERTIES.has(name) && !isTyped(node.el, name)))
      setProperty(node.el, name, value);
  }
}

/** Whether an element may have a value that a reader is typing, and that nothing else knows yet. */
function isTyped(el, name) {
  return name === "value" && el === document.activeElement;
}

function setProperty(el, name, value) {
  if (name === "key" || name === "onshow") return;
  if (name.startsWith("on")) {
    el[name] = value && ((event) => void value(event)); // the browser does nothing more if one returns false
  } else if (name === "css") {
    for (const [property, each] of Object.entries(value ?? {})) el.style.setProperty(property, each);
  } else if (PROPERTIES.has(name)) {
    const wanted = value ?? (name === "value" ? "" : false);
    if (el[name] !== wanted) el[name] = wanted;
  } else if (REFUSED.test(name) || (PLACES.test(name) && !isOwnPlace(value))) {
    throw new Error(`${name} can't be set here`);
  } else if (value === null || value === undefined || value === false) {
    el.removeAttribute(name);
  } else {
    el.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Whether an address is on this server, or data that this page has made. */
function isOwnPlace(value) {
  return value === null || value === undefined || /^(\/(?!\/)|#|\?|blob:|data:image\/)/.test(value);
}

let view = () => null;
let isPlanned = false;

/** Say what the whole document shows. */
export function setView(next) {
  view = next;
  refresh();
}

/** Show it again soon. */
export function refresh() {
  if (isPlanned) return;
  isPlanned = true;
  requestAnimationFrame(() => {
    isPlanned = false;
    render(document.getElementById("app"), view());
  });
}
