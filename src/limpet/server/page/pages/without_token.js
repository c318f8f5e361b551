/** Pages for browsers without the token: one that asks for it, and one that answers a single question by its link. */

import { get, logIn, post } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { attempt } from "../parts/dialog.js";
import { QuestionForm } from "../parts/forms.js";
import { timeView } from "../parts/labels.js";

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
    await attempt(async () => {
      await logIn(this.token.trim());
      this.whenDone();
    }, this);
  }

  view() {
    return h(
      "main.answer-page",
      h(
        "form.panel",
        { onsubmit: (event) => this.submit(event) },
        h("h1", "A token is needed"),
        h("p", "Open the URL that ", h("code", "limpet serve"), " has printed, or give its token:"),
        h("input", {
          type: "password",
          "aria-label": "token",
          autocomplete: "off",
          autofocus: true,
          value: this.token,
          oninput: (event) => (this.token = event.target.value),
        }),
        this.problem && h("p.field-problem", { role: "alert" }, this.problem),
        h("div.dialog-actions", h("button.primary", "Open")),
      ),
    );
  }
}

export class AnswerPage {
  title = "A question";
  isPublic = true;

  constructor({ parts }) {
    this.path = `/questions/${encodeURIComponent(parts[1] ?? "")}`;
  }

  start() {
    return attempt(async () => {
      this.found = await get(this.path);
      if (this.found.question) {
        this.form = new QuestionForm(this.found.question, (value) => this.answer(value), { asksName: false });
      }
    }, this);
  }

  stop() {}

  async answer(value) {
    await post(`${this.path}/answer`, { value });
    this.isAnswered = true;
    refresh();
  }

  view() {
    return h("main.answer-page", h("div.panel", this.content()));
  }

  content() {
    if (this.problem) return [h("h1", "This link can't be used"), h("p", this.problem)];
    if (!this.found) return h("p.faint", "loading …");
    if (this.isAnswered) return [h("h1", "Thank you"), h("p", "Your answer is saved. You can close this page.")];
    if (!this.form) return [h("h1", "Answered already"), h("p", "This question is no longer open.")];
    return [
      h("h1", "A question"),
      h("p.faint", `${this.found.graph} · ${this.found.run_id}`),
      this.form.view(),
      h("p.faint", "This link ends ", timeView(this.found.expires)),
    ];
  }
}
