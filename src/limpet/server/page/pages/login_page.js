/** What is shown to a browser without the token. */

import { logIn } from "../core/api.js";
import { h } from "../core/dom.js";
import { refresh } from "../core/screen.js";

export class LoginPage {
  title = "Token";

  constructor({ whenDone }) {
    this.whenDone = whenDone;
    this.token = "";
    this.problem = "";
  }

  start() {}

  stop() {}

  async submit(event) {
    event.preventDefault();
    this.problem = "";
    try {
      await logIn(this.token.trim());
      this.whenDone();
    } catch (error) {
      this.problem = error.message;
    }
    refresh();
  }

  view() {
    return h(
      "main",
      { class: "answer-page" },
      h(
        "form",
        { class: "panel", onsubmit: (event) => this.submit(event) },
        h("h1", {}, "A token is needed"),
        h("p", {}, "Open the URL that ", h("code", {}, "limpet serve"), " has printed, or give its token:"),
        h("input", { type: "password", "aria-label": "token", autocomplete: "off", autofocus: true, value: this.token, oninput: (event) => (this.token = event.target.value) }),
        this.problem && h("p", { class: "field-problem", role: "alert" }, this.problem),
        h("div", { class: "dialog-actions" }, h("button", { class: "primary" }, "Open")),
      ),
    );
  }
}
