/** What a reader does: which address is open, what was chosen (theme, zone, whether the page is live), which keys are typed. */

/** The path under which the application is mounted. */
export const ROOT = document.documentElement.dataset.root ?? "";

const kept = {
  get(name) {
    try {
      return localStorage.getItem(`limpet.${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      if (value === null) localStorage.removeItem(`limpet.${name}`);
      else localStorage.setItem(`limpet.${name}`, value);
    } catch {
      // It holds until the page is closed.
    }
  },
};

export const settings = {
  paused: false,
  theme: kept.get("theme") ?? "system",
  zone: kept.get("zone") ?? "local",
  name: kept.get("name") ?? "",
  offset: 0,
};

/** The time by the server's clock, in seconds. */
export function serverNow() {
  return Date.now() / 1000 + settings.offset;
}

const THEMES = ["system", "light", "dark"];

/** Take the next theme. */
export function nextTheme() {
  settings.theme = THEMES[(THEMES.indexOf(settings.theme) + 1) % THEMES.length];
  if (settings.theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
  kept.set("theme", settings.theme === "system" ? null : settings.theme);
}

/** Show times of this place, or UTC. */
export function nextZone() {
  settings.zone = settings.zone === "local" ? "utc" : "local";
  kept.set("zone", settings.zone);
}

/** Remember who answers. */
export function setName(name) {
  settings.name = name;
  kept.set("name", name.trim() || null);
}

const layers = [];
const SAME_KEYS = { ArrowDown: "j", ArrowUp: "k" };

/** Use these keys until the returned function is called; those that were added last come first. */
export function useKeys(keys) {
  layers.push(keys);
  return () => {
    const index = layers.indexOf(keys);
    if (index >= 0) layers.splice(index, 1);
  };
}

/** Whether keys are typed into an element. */
function isTyping(element) {
  return Boolean(
    element?.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]"),
  );
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const key = SAME_KEYS[event.key] ?? event.key;
  if (isTyping(event.target)) {
    if (key !== "Escape") return;
    if (!layers.at(-1).only) {
      event.target.blur(); // the page stays, with what was typed
      return;
    }
  }
  if (event.target.type === "radio" && event.key.startsWith("Arrow")) return; // they choose
  if (key === "Enter" && event.target.closest("a, button, summary, input")) return; // they have their own
  for (const keys of layers.toReversed()) {
    const action = keys[key];
    if (action) {
      if (action(event) !== false) event.preventDefault();
      return;
    }
    if (keys.only) return;
  }
});

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
