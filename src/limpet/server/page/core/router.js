/** Which page the address shows, and how links change it without loading the document again. */

import { ROOT } from "./api.js";

let whenChanged = () => {};

/** Call this with the place whenever the address changes, and once now. */
export function startRouter(callback) {
  whenChanged = callback;
  addEventListener("popstate", () => whenChanged(place()));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
    if (!link || !isPlain || link.target || link.hasAttribute("download") || event.defaultPrevented) return;
    event.preventDefault();
    go(link.getAttribute("href"));
  });
  whenChanged(place());
}

/** The place that the address names: the parts of its path, decoded, and its query. */
function place() {
  const path = location.pathname.slice(ROOT.length);
  const parts = path.split("/").filter(Boolean).map(decodedPart);
  return { parts, query: new URLSearchParams(location.search) };
}

/** Open an address. With `replace`, it takes the place of the present one in the history. */
export function go(address, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  whenChanged(place());
}

/** Change values in the query of the address; null removes one. The page isn't opened again. */
export function setQuery(changes, { push = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  const address = `${location.pathname}${text ? `?${text}` : ""}`;
  if (address === location.pathname + location.search) return;
  if (push) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** The address of a page, with its query if the last part is an object: `pageUrl("runs", { q: "status:failed" })`. */
export function pageUrl(...parts) {
  const query = typeof parts.at(-1) === "object" ? new URLSearchParams(parts.pop()) : "";
  return `${ROOT}/${parts.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

function decodedPart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
