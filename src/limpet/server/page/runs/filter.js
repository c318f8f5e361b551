/** The filter of the list: where it is typed, with suggestions, and what the API takes for it. */

import { h, refresh } from "../core/dom.js";

/** The bar. `apply` gets the text when it has changed; `open` a word that may be the id of a run. */
export class FilterBar {
  constructor({ text, apply, open }) {
    this.text = text;
    this.apply = apply;
    this.open = open;
    this.suggestions = [];
    this.chosen = -1;
    this.isOpen = false;
  }

  view(problems) {
    return h(
      "div.filter",
      h("input", {
        id: "filter",
        class: "filter-input",
        type: "search",
        role: "combobox",
        "aria-label": "filter the runs",
        "aria-expanded": String(this.isOpen && this.suggestions.length > 0),
        "aria-controls": "filter-suggestions",
        "aria-activedescendant": this.chosen >= 0 ? `suggestion-${this.chosen}` : null,
        "aria-autocomplete": "list",
        placeholder: "status:failed graph:article since:2h, or the id of a run",
        autocomplete: "off",
        spellcheck: "false",
        value: this.text,
        oninput: (event) => this.type(event.target),
        onfocus: (event) => this.suggest(event.target),
        onclick: (event) => this.suggest(event.target),
        onblur: () => this.leave(),
        onkeydown: (event) => this.key(event),
      }),
      problems.length > 0 && h("p.field-problem", { role: "alert" }, problems.join("; ")),
      this.isOpen && this.suggestions.length > 0 && this.list(),
    );
  }

  list() {
    return h(
      "ul",
      { id: "filter-suggestions", class: "suggestions", role: "listbox" },
      this.suggestions.map((each, index) =>
        h(
          "li",
          {
            key: each.text,
            id: `suggestion-${index}`,
            role: "option",
            "aria-selected": String(index === this.chosen),
            class: index === this.chosen ? "chosen" : null,
            onshow: (element) => index === this.chosen && element.scrollIntoView({ block: "nearest" }),
            onmousedown: (event) => {
              event.preventDefault();
              this.take(each);
            },
          },
          h("span", each.text),
          h("span.faint", each.about),
        ),
      ),
    );
  }

  /** Show another filter, as a chip or the address says. */
  set(text) {
    this.text = text;
    this.isOpen = false;
  }

  focus() {
    const input = document.getElementById("filter");
    input?.focus();
    input?.select();
  }

  type(input) {
    this.text = input.value;
    this.suggest(input);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.apply(this.text), 300);
  }

  suggest(input) {
    const [word] = idIn(input.value);
    const ids = [...seen.id].filter((id) => word && id.startsWith(word)).slice(0, 5);
    const others = word && !ids.includes(word) ? [word] : []; // hardly ever the id of a run
    const opening = (id) => ({ text: id, about: "open the run with this id", opens: id });
    const terms = suggestionsFor(input.value, input.selectionStart ?? input.value.length);
    this.suggestions = [...ids.map(opening), ...terms, ...others.map(opening)];
    this.chosen = -1;
    this.isOpen = true;
    refresh();
  }

  leave() {
    this.isOpen = false;
    this.applyNow();
  }

  applyNow() {
    clearTimeout(this.timer);
    this.apply(this.text);
    refresh();
  }

  /** The page is left: what is typed last isn't applied to the next one. */
  stop() {
    clearTimeout(this.timer);
    this.apply = () => {};
  }

  take(suggestion) {
    if (suggestion.opens) {
      this.open(suggestion.opens);
      return;
    }
    this.text = suggestion.filter;
    const input = document.getElementById("filter");
    input.value = this.text;
    input.setSelectionRange(suggestion.cursor, suggestion.cursor);
    const isWhole = !suggestion.text.endsWith(":");
    if (isWhole) this.applyNow();
    this.suggest(input);
    this.isOpen = !isWhole;
  }

  key(event) {
    const last = this.suggestions.length - 1;
    if (event.key === "ArrowDown" && this.isOpen && last >= 0) {
      this.chosen = this.chosen >= last ? 0 : this.chosen + 1;
    } else if (event.key === "ArrowUp" && this.isOpen && last >= 0) {
      this.chosen = this.chosen <= 0 ? last : this.chosen - 1;
    } else if (event.key === "Enter") {
      this.enter();
    } else if (event.key === "Escape") {
      if (this.isOpen && this.suggestions.length) this.isOpen = false;
      else event.target.blur();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    refresh();
  }

  enter() {
    const chosen = this.suggestions[this.chosen];
    if (this.isOpen && chosen) {
      this.take(chosen);
      return;
    }
    this.isOpen = false;
    this.applyNow();
    const [word] = idIn(this.text);
    if (word) this.open(word, { quietly: true });
  }
}

/** The word that is the whole text, if it is one and may be the id of a run. */
function idIn(text) {
  return /^[^\s:]+$/.exec(text.trim()) ?? [];
}

/** The words before a colon, and the statuses, each with what it means: as the server has them. */
export const known = { filters: {}, statuses: {} };

const VALUES = {
  id: (run) => [run.run_id],
  graph: (run) => [run.graph],
  tag: (run) => run.tags,
  node: (run) => [run.node],
  queue: (run) => [run.queue],
  error: (run) => [run.error?.type],
  parent: (run) => [run.parent],
};
const seen = Object.fromEntries(Object.keys(VALUES).map((name) => [name, new Set()]));

/** Remember the values of runs for suggestions, until the page is loaded again. */
export function noteSeen(runs) {
  for (const [name, valuesOf] of Object.entries(VALUES)) {
    for (const value of runs.flatMap(valuesOf)) if (value) seen[name].add(value);
  }
}

const TIMES = ["10m", "1h", "24h", "7d", "30d"];
const SEVERAL = new Set(["status", "tag"]);
const TERM = /(?:([a-z_]+):)?(?:"((?:[^"\\]|\\.)*)"?|(\S+))/g;

/** The terms of a filter: each a `name`, empty for a bare word, and a `value`, with its place in the text. */
export function termsOf(text) {
  const terms = [];
  for (const match of text.matchAll(TERM)) {
    const [whole, name = "", quoted, plain] = match;
    const value = quoted === undefined ? plain : quoted.replace(/\\(.)/g, "$1");
    terms.push({ name, value, start: match.index, end: match.index + whole.length });
  }
  return terms;
}

/** What the API takes for a filter; and what isn't right about it, for people. */
export function queryOf(text) {
  const query = {};
  const problems = [];
  const words = [];
  for (const { name, value } of termsOf(text)) {
    if (!name) {
      words.push(...nameless(value, problems));
    } else if (!Object.hasOwn(known.filters, name)) {
      problems.push(`there is no filter “${name}:”`);
    } else if (SEVERAL.has(name)) {
      query[name] = [...(query[name] ?? []), ...(name === "status" ? value.split(",").filter(Boolean) : [value])];
    } else if (Object.hasOwn(query, name)) {
      problems.push(`“${name}:” is there twice`);
    } else if (name === "unserved" && value !== "true") {
      problems.push("there is only “unserved:true”");
    } else {
      query[name] = value;
    }
  }
  for (const status of query.status ?? []) {
    if (!Object.hasOwn(known.statuses, status)) problems.push(`there is no status “${status}”`);
  }
  if (words.length) query.text = [query.text, ...words].filter(Boolean).join(" ");
  return { query, problems };
}

function nameless(value, problems) {
  const [name] = value.split(":");
  if (!value.endsWith(":") || !Object.hasOwn(known.filters, name)) return [value];
  problems.push(`“${value}” needs a value`);
  return [];
}

/** A term as text. */
export function termText(name, value) {
  const needsQuotes = /[\s"\\]/.test(value) || value === "";
  return `${name}:${needsQuotes ? `"${value.replace(/["\\]/g, "\\$&")}"` : value}`;
}

/** The same filter with a status in it, or without it if it has it. */
export function withStatus(text, status) {
  const terms = termsOf(text);
  const others = terms.filter((each) => each.name !== "status");
  const statuses = terms.filter((each) => each.name === "status").flatMap((each) => each.value.split(","));
  const wanted = statuses.includes(status) ? statuses.filter((each) => each !== status) : [...statuses, status];
  const parts = others.map((each) => text.slice(each.start, each.end));
  return [...wanted.map((each) => termText("status", each)), ...parts].join(" ");
}

/** The statuses that a filter asks for. */
export function statusesOf(text) {
  return new Set(queryOf(text).query.status ?? []);
}

/** What may be meant where the cursor is: each with its `text`, what it is `about`, and the whole filter with it. */
function suggestionsFor(text, cursor) {
  const terms = termsOf(text);
  const term = terms.find((each) => each.start <= cursor && cursor <= each.end) ?? {
    start: cursor,
    end: cursor,
    value: "",
  };
  const typed = text.slice(term.start, cursor);
  const [, name, part] = /^([a-z_]+):"?(.*)$/s.exec(typed) ?? [null, null, typed];
  const found = name ? valuesFor(name, part) : namesFor(part);
  return found.map((each) => {
    const next = text.slice(0, term.start) + each.text;
    return { ...each, filter: next + text.slice(term.end), cursor: next.length };
  });
}

function namesFor(part) {
  const names = Object.entries(known.filters).filter(([name]) => name.startsWith(part.toLowerCase()));
  const found = names.map(([name, about]) => ({ text: `${name}:`, about }));
  if (part) {
    const statuses = Object.entries(known.statuses).filter(([status]) => status.startsWith(part.toLowerCase()));
    found.push(...statuses.map(([status, about]) => ({ text: `status:${status}`, about })));
  }
  return found;
}

function valuesFor(name, part) {
  const abouts = name === "status" ? known.statuses : {};
  const times = name.includes("since") || name.includes("before") ? TIMES : [];
  const values = name === "unserved" ? ["true"] : [...Object.keys(abouts), ...times, ...[...(seen[name] ?? [])].sort()];
  const last = part.split(",").pop().toLowerCase();
  const before = name === "status" && part.includes(",") ? part.slice(0, part.lastIndexOf(",") + 1) : "";
  const matches = values.filter((each) => each.toLowerCase().startsWith(last) && each !== part);
  return matches.slice(0, 12).map((each) => ({ text: termText(name, before + each), about: abouts[each] ?? "" }));
}
