/** What a reader has chosen: theme and time zone, kept by the browser; and whether the page is live. */

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
};

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
  kept.set("name", name || null);
}
