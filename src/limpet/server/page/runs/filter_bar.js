/** Where the filter of the list is typed, with suggestions. */

import { h } from "../core/dom.js";
import { refresh } from "../core/screen.js";
import { suggestionsFor } from "./filter_language.js";

/** The bar. `apply` gets the text when it has changed; `open` a word that may be the id of a run. */
export class FilterBar {
  constructor({ text, apply, open, seen }) {
    this.text = text;
    this.apply = apply;
    this.open = open;
    this.seen = seen;
    this.suggestions = [];
    this.chosen = -1;
    this.isOpen = false;
  }

  view(problems) {
    return h(
      "div",
      { class: "filter" },
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
      problems.length > 0 && h("p", { class: "field-problem", role: "alert" }, problems.join("; ")),
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
            onmousedown: (event) => {
              event.preventDefault();
              this.take(each);
            },
          },
          h("span", {}, each.text),
          h("span", { class: "faint" }, each.about),
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
    this.suggestions = suggestionsFor(input.value, input.selectionStart ?? input.value.length, this.seen());
    const word = input.value.trim();
    if (word && !/[\s:]/.test(word)) {
      this.suggestions.unshift({ text: word, about: "open the run with this id", opens: word });
    }
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

  take(suggestion) {
    if (suggestion.opens) {
      this.open(suggestion.opens);
      return;
    }
    this.text = suggestion.filter;
    const input = document.getElementById("filter");
    input.value = this.text;
    input.setSelectionRange(suggestion.cursor, suggestion.cursor);
    if (!suggestion.text.endsWith(":")) this.applyNow();
    this.suggest(input);
    if (!suggestion.text.endsWith(":")) this.isOpen = false;
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
    const word = this.text.trim();
    if (word && !/[\s:]/.test(word)) this.open(word, { quietly: true });
  }
}
