/** A picture of a graph, made again from what the server drew: only shapes, lines and texts, no styles or scripts. */

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "g", "path", "rect", "circle", "text", "tspan", "title", "desc"]);
const ATTRIBUTES = new Set([
  "class", "d", "x", "y", "width", "height", "rx", "r", "cx", "cy", "dx", "viewBox", "transform", "data-node", "role", "aria-label",
]);

/** The elements of a picture. Throws an `Error` for what isn't one. */
export function pictureOf(text) {
  const unstyled = text.replace(/<style>[^<]*<\/style>/, ""); // the page has the rules, and refuses styles inside
  const parsed = new DOMParser().parseFromString(unstyled, "image/svg+xml");
  if (parsed.documentElement.localName !== "svg") throw new Error("the picture can't be read");
  return copyOf(parsed.documentElement);
}

function copyOf(element) {
  const made = document.createElementNS(SVG, element.localName);
  for (const { name, value } of element.attributes) {
    if (ATTRIBUTES.has(name)) made.setAttribute(name, value);
  }
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) made.append(child.data);
    else if (child.nodeType === Node.ELEMENT_NODE && SHAPES.has(child.localName)) made.append(copyOf(child));
  }
  return made;
}
