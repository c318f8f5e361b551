/** The page of a link to one question: it works without the token of the server, on a phone, too. */

import { get, post } from "../core/api.js";
import { h } from "../core/dom.js";
import { exactTime } from "../core/format.js";
import { refresh } from "../core/screen.js";
import { QuestionForm } from "../parts/question_form.js";

export class AnswerPage {
  title = "A question";
  isPublic = true;

  constructor({ parts }) {
    this.path = `/questions/${encodeURIComponent(parts[1] ?? "")}`;
  }

  async start() {
    try {
      this.found = await get(this.path);
      if (this.found.question) {
        this.form = new QuestionForm(this.found.question, (value) => this.answer(value), { asksName: false });
      }
    } catch (error) {
      this.problem = error.message;
    }
    refresh();
  }

  stop() {}

  async answer(value) {
    await post(`${this.path}/answer`, { value });
    this.isAnswered = true;
    refresh();
  }

  view() {
    return h("main", { class: "answer-page" }, h("div", { class: "panel" }, this.content()));
  }

  content() {
    if (this.problem) return [h("h1", {}, "This link can't be used"), h("p", {}, this.problem)];
    if (!this.found) return h("p", { class: "faint" }, "loading …");
    if (this.isAnswered) return [h("h1", {}, "Thank you"), h("p", {}, "Your answer is saved. You can close this page.")];
    if (!this.form) return [h("h1", {}, "Answered already"), h("p", {}, "This question is no longer open.")];
    return [
      h("h1", {}, "A question"),
      h("p", { class: "faint" }, `${this.found.graph} · ${this.found.run_id}`),
      this.form.view(),
      h("p", { class: "faint" }, `This link is valid until ${exactTime(this.found.expires)}.`),
    ];
  }
}
