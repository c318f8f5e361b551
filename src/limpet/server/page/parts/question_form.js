/** A question of a run as a form, made from its choices or its schema. */

import { h } from "../core/dom.js";
import { refresh } from "../core/screen.js";
import { setName, settings } from "../core/settings.js";
import { complain } from "./notices.js";
import { EMPTY, fieldFor } from "./schema_form.js";
import { shortForm } from "./state_tree.js";
import { timeView } from "./time.js";

const FEW = 6;
const SHORT = 24;

/** The form of one question. `answer(value, by)` sends it, and is awaited. */
export class QuestionForm {
  constructor(question, answer, { asksName = true } = {}) {
    this.question = question;
    this.answer = answer;
    this.asksName = asksName;
    this.isSending = false;
    this.problem = "";
    this.buttons = hasButtons(question) ? (question.choices ?? [true, false]) : null;
    if (this.buttons) return;
    const schema = question.choices ? { enum: question.choices } : (question.schema ?? {});
    this.field = fieldFor(schema, { secret: question.secret, isRequired: true });
    if (!question.choices && !question.schema) this.field = fieldFor({ type: "string" }, { secret: question.secret });
  }

  view() {
    const { question } = this;
    return h(
      "form",
      { class: "question", onsubmit: (event) => this.submit(event) },
      h("p", { class: "prompt" }, question.prompt),
      question.deadline && h("p", { class: "faint" }, "to be answered ", timeView(question.deadline)),
      this.field?.view(),
      this.problem && h("p", { class: "field-problem", role: "alert" }, this.problem),
      h("div", { class: "question-actions" }, this.actions()),
      this.asksName && this.nameInput(),
    );
  }

  actions() {
    if (!this.buttons) return h("button", { class: "primary", disabled: this.isSending }, "Answer");
    return this.buttons.map((each, index) =>
      h(
        "button",
        { key: index, type: "button", class: index === 0 ? "primary" : "", disabled: this.isSending, onclick: () => this.send(each) },
        buttonText(each),
      ),
    );
  }

  nameInput() {
    return h(
      "label",
      { class: "by" },
      "as ",
      h("input", { value: settings.name, placeholder: "your name", autocomplete: "name", oninput: (event) => setName(event.target.value.trim()) }),
    );
  }

  submit(event) {
    event.preventDefault();
    if (this.buttons) return;
    try {
      const value = this.field.read();
      if (value !== EMPTY) this.send(value);
    } catch {
      // The field says what is wrong.
    }
  }

  async send(value) {
    this.isSending = true;
    this.problem = "";
    refresh();
    try {
      await this.answer(value, settings.name);
    } catch (error) {
      this.problem = error.message;
      if (error.status !== 422) complain(error);
    }
    this.isSending = false;
    refresh();
  }
}

/** Whether the answers to a question fit on a few buttons. */
export function hasButtons({ choices, schema }) {
  if (!choices) return schema?.type === "boolean";
  return choices.length <= FEW && choices.every((each) => shortForm(each).length <= SHORT);
}

function buttonText(value) {
  if (value === true) return "yes";
  if (value === false) return "no";
  return typeof value === "string" ? value : shortForm(value);
}
