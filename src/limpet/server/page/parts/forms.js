/** Questions of runs as forms, and fields made from a JSON Schema: text, number, yes or no, one of, several of, JSON. */

import { parseAsWritten, textOf } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { setName, settings } from "../core/reader.js";
import { codePanel } from "./code.js";
import { complain } from "./dialog.js";
import { timeView } from "./labels.js";
import { shortForm } from "./values.js";

/** Choices up to which all are shown, and characters of one on a button. */
const FEW = 6;
const SHORT = 24;

/** The form of one question. `answer(value, by)` sends it, and is awaited; `code(value, by)` does it elsewhere. */
export class QuestionForm {
  constructor(question, answer, { asksName = true, code = null } = {}) {
    this.question = question;
    this.answer = answer;
    this.asksName = asksName;
    this.code = code;
    this.isSending = false;
    this.problem = "";
    this.buttons = hasButtons(question) ? (question.choices ?? [true, false]) : null;
    if (this.buttons) return;
    this.field = fieldOf(question);
  }

  view() {
    const { question } = this;
    return h(
      "form.question",
      { key: question.id, onsubmit: (event) => this.submit(event) },
      h("p.prompt", question.prompt),
      question.deadline && h("p.faint", "to be answered ", timeView(question.deadline)),
      this.field?.view(),
      this.problem && h("p.field-problem", { role: "alert" }, this.problem),
      h("div.question-actions", this.actions()),
      this.asksName && nameInput(),
      this.code && codePanel(this.code(this.example(), settings.name.trim())),
    );
  }

  actions() {
    if (!this.buttons) return h("button.primary", { disabled: this.isSending }, "Answer");
    return this.buttons.map((each, index) =>
      h(
        "button",
        {
          key: index,
          type: "button",
          disabled: this.isSending,
          onclick: () => this.send(each),
        },
        buttonText(each),
      ),
    );
  }

  /** The answer by now; until there is one, such an answer. */
  example() {
    const value = this.buttons ? this.buttons[0] : this.field.peek();
    return value === EMPTY ? "VALUE" : value;
  }

  submit(event) {
    event.preventDefault();
    if (this.buttons) return;
    try {
      const value = this.field.read();
      this.send(value === EMPTY ? null : value); // only what is optional can be left empty
    } catch {
      // The field says what is wrong.
    }
  }

  async send(value) {
    if (this.isSending) return;
    this.isSending = true;
    this.problem = "";
    refresh();
    try {
      await this.answer(value, settings.name.trim());
    } catch (error) {
      this.problem = error.message;
      if (error.status !== 422) complain(error);
    }
    this.isSending = false;
    refresh();
  }
}

/** Asks as whom the reader answers, which is remembered. */
export function nameInput() {
  return h(
    "label.by",
    "as ",
    h("input", {
      value: settings.name,
      placeholder: "your name",
      autocomplete: "name",
      oninput: (event) => {
        setName(event.target.value);
        refresh();
      },
    }),
  );
}

/** The field of a question. Of a schema that isn't one, the server says what is wrong with an answer. */
function fieldOf({ prompt, choices, schema, secret }) {
  try {
    return fieldFor(choices ? { enum: choices } : (schema ?? { type: "string" }), { prompt, secret });
  } catch {
    return new JsonField({ schema: {}, prompt, isRequired: true });
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

const MAX_DEPTH = 3;
let lastId = 0;

/** What stands for a field that was left empty. */
export const EMPTY = Symbol("empty");

/** A field for a schema. It has `view()`, and `read()`, which gives the value or throws an `Error` for people. */
export function fieldFor(
  schema,
  { name = "", prompt, initial, isRequired = true, root = schema, depth = 0, secret = false } = {},
) {
  const known = resolved(schema ?? {}, root);
  const options = { name, prompt, isRequired, schema: known, secret, initial: initial ?? known.default };
  const choices = known.enum ?? (known.const === undefined ? null : [known.const]);
  if (choices) return new ChoiceField({ ...options, choices });
  switch (typeOf(known)) {
    case "boolean":
      return new ChoiceField({ ...options, choices: [true, false], labels: ["yes", "no"] });
    case "integer":
    case "number":
      return new NumberField(options);
    case "string":
      return new TextField(options);
    case "array": {
      const items = resolved(known.items ?? {}, root);
      return items.enum ? new SeveralField({ ...options, choices: items.enum }) : new JsonField(options);
    }
    case "object":
      return known.properties && depth < MAX_DEPTH
        ? new ObjectField({ ...options, root, depth })
        : new JsonField(options);
    default:
      return new JsonField(options);
  }
}

/** The schema that is meant, without references, and without the `null` of an optional value. */
function resolved(schema, root) {
  let found = schema;
  for (let steps = 0; found.$ref && steps < 20; steps += 1) {
    const parts = found.$ref.replace(/^#\//, "").split("/");
    found = parts.reduce((each, part) => each?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], root) ?? {};
  }
  const options = found.anyOf ?? found.oneOf;
  if (options) {
    const some = options.filter((each) => each.type !== "null");
    if (some.length === 1)
      return { ...found, anyOf: undefined, oneOf: undefined, ...resolved(some[0], root), isOptional: true };
    if (some.length && some.every((each) => each.const !== undefined))
      return { ...found, enum: some.map((each) => each.const) };
  }
  if (found.type?.includes?.("null")) return { ...found, isOptional: true };
  if (found.allOf?.length === 1) return { ...found, allOf: undefined, ...resolved(found.allOf[0], root) };
  return found;
}

function typeOf(schema) {
  if (!Array.isArray(schema.type)) return schema.type ?? (schema.properties ? "object" : undefined);
  const some = schema.type.filter((each) => each !== "null");
  return some.length === 1 ? some[0] : undefined;
}

/** What a schema has as a text, if it is one. */
function textIn(value) {
  return typeof value === "string" ? value : undefined;
}

class Field {
  constructor({ name = "", prompt = null, isRequired, schema, initial, secret }) {
    lastId += 1;
    this.id = `field-${lastId}`;
    this.name = name;
    this.schema = schema;
    this.label = textIn(schema.title) ?? name;
    this.spoken = this.label ? null : prompt; // the name of one that is alone, for screen readers
    this.isRequired = isRequired && !schema.isOptional && schema.default === undefined;
    this.secret = secret || schema.format === "password" || schema.writeOnly === true;
    this.initial = initial;
    this.problem = "";
    this.hasInput = false;
  }

  /** Whether the reader has put something in. */
  get isTouched() {
    return this.hasInput;
  }

  /** Whether a list or an object is left out, as the reader has put nothing in. */
  get isLeftOut() {
    return !this.isRequired && !this.isTouched && (this.initial ?? null) === null;
  }

  /** The label, the control, and what is wrong. */
  view() {
    const about = textIn(this.schema.description);
    return h(
      "div",
      { key: this.id, class: "field" },
      this.label && h("label", { for: this.id }, this.label, !this.isRequired && h("span.faint", " optional")),
      this.control(),
      about && h("p.faint", about),
      this.problem && h("p.field-problem", { role: "alert" }, this.problem),
    );
  }

  /** The value, or `EMPTY`; what is wrong is shown at the field, too. */
  read() {
    this.problem = "";
    try {
      return this.value();
    } catch (error) {
      this.problem = error.message;
      refresh();
      throw error;
    }
  }

  /** The value by now; `EMPTY` if there is none, or something is wrong with it. */
  peek() {
    try {
      return this.value();
    } catch {
      return EMPTY;
    }
  }

  nothing() {
    if (this.isRequired) throw new Error(`${this.label || "a value"} is needed`);
    return EMPTY;
  }

  /** What controls have in which a text is typed. */
  typed(properties) {
    const oninput = (event) => {
      this.text = event.target.value;
      this.hasInput = this.takesEmpty || this.text !== "";
      this.problem = "";
      refresh();
    };
    return {
      id: this.id,
      "aria-label": this.spoken,
      value: this.text,
      spellcheck: "false",
      autocomplete: "off",
      oninput,
      ...properties,
    };
  }

  area(least, most, properties) {
    const rows = Math.min(Math.max(this.text.split("\n").length, least), most);
    return h("textarea", this.typed({ rows, ...properties }));
  }
}

class TextField extends Field {
  takesEmpty = true;

  constructor(options) {
    super(options);
    this.text = typeof this.initial === "string" ? this.initial : "";
  }

  control() {
    const placeholder = this.schema.format ?? this.schema.examples?.[0] ?? null;
    if (this.secret) return h("input", this.typed({ placeholder, type: "password" }));
    return this.area(1, 8, { placeholder });
  }

  value() {
    if (this.text === "" && !this.hasInput) return this.nothing();
    return this.text;
  }
}

const IN_JSON = /^-?(0|[1-9]\d*)(\.\d+)?(e[+-]?\d+)?$/i;

class NumberField extends Field {
  constructor(options) {
    super(options);
    this.text = String(this.initial ?? "");
  }

  control() {
    const { minimum, maximum } = this.schema;
    const bounds = minimum !== undefined && maximum !== undefined ? `${minimum} – ${maximum}` : null;
    return h("input", this.typed({ inputmode: "decimal", placeholder: bounds }));
  }

  value() {
    const text = this.text.trim();
    if (!text) return this.nothing();
    const isWhole = typeOf(this.schema) === "integer";
    if (isWhole && !/^[+-]?\d+$/.test(text)) throw new Error(`“${text}” isn't a whole number`);
    if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)) throw new Error(`“${text}” isn't a number`);
    const number = Number(text);
    if (number < this.schema.minimum) throw new Error(`it must be at least ${this.schema.minimum}`);
    if (number > this.schema.maximum) throw new Error(`it must be at most ${this.schema.maximum}`);
    return IN_JSON.test(text) ? parseAsWritten(text) : number;
  }
}

class ChoiceField extends Field {
  constructor(options) {
    super(options);
    this.choices = options.choices;
    this.labels = options.labels ?? options.choices.map((each) => (typeof each === "string" ? each : shortForm(each)));
    this.chosen = this.choices.indexOf(this.initial);
  }

  control() {
    if (this.choices.length > FEW) return this.list();
    return this.boxes("radio", (index) => index === this.chosen);
  }

  /** The choices as boxes of which one or several are chosen. */
  boxes(type, isChosen) {
    return h(
      "div.choices",
      { role: type === "radio" ? "radiogroup" : "group", id: this.id, "aria-label": this.spoken ?? this.label },
      this.labels.map((label, index) =>
        h(
          "label.choice",
          { key: index, class: isChosen(index) ? "chosen" : "" },
          h("input", { type, name: this.id, checked: isChosen(index), onchange: () => this.choose(index) }),
          label,
        ),
      ),
    );
  }

  list() {
    return h(
      "select",
      {
        id: this.id,
        "aria-label": this.spoken,
        value: String(this.chosen),
        onchange: (event) => this.choose(Number(event.target.value)),
      },
      h("option", { value: "-1" }, "choose…"),
      this.labels.map((label, index) => h("option", { key: index, value: String(index) }, label)),
    );
  }

  choose(index) {
    this.chosen = index;
    this.hasInput = true;
    this.problem = "";
    refresh();
  }

  value() {
    return this.chosen < 0 ? this.nothing() : this.choices[this.chosen];
  }
}

class SeveralField extends ChoiceField {
  constructor(options) {
    super(options);
    this.chosen = new Set([...this.choices.keys()].filter((index) => options.initial?.includes?.(this.choices[index])));
  }

  control() {
    return this.boxes("checkbox", (index) => this.chosen.has(index));
  }

  choose(index) {
    if (!this.chosen.delete(index)) this.chosen.add(index);
    this.hasInput = true;
    refresh();
  }

  value() {
    if (this.isLeftOut) return EMPTY;
    return this.choices.filter((each, index) => this.chosen.has(index));
  }
}

/** A value as JSON; what isn't JSON is taken for a text where the schema allows one. */
export class JsonField extends Field {
  constructor(options) {
    super(options);
    this.text = this.initial === undefined ? "" : textOf(this.initial, 2);
  }

  control() {
    const placeholder = typeOf(this.schema) === undefined ? "text, or JSON such as 3, true, [1, 2]" : "JSON";
    return this.area(2, 16, { class: "code-input", placeholder });
  }

  value() {
    if (!this.text.trim()) return this.nothing();
    try {
      return parseAsWritten(this.text);
    } catch (error) {
      if (typeOf(this.schema) === undefined) return this.text;
      throw new Error(`this isn't JSON: ${error.message}`);
    }
  }
}

class ObjectField extends Field {
  constructor(options) {
    super(options);
    const needed = new Set(this.schema.required ?? []);
    this.fields = Object.entries(this.schema.properties).map(([name, schema]) =>
      fieldFor(schema, {
        name,
        initial: this.initial?.[name],
        isRequired: needed.has(name),
        root: options.root,
        depth: options.depth + 1,
      }),
    );
  }

  control() {
    return h(
      "div.fields",
      { id: this.id },
      this.fields.map((each) => each.view()),
    );
  }

  get isTouched() {
    return this.fields.some((field) => field.isTouched);
  }

  peek() {
    if (this.isLeftOut) return EMPTY;
    const values = this.fields.map((field) => [field.name, field.peek()]);
    return Object.fromEntries(values.filter(([, value]) => value !== EMPTY));
  }

  value() {
    if (this.isLeftOut) return EMPTY;
    const found = {};
    let problem = null;
    for (const field of this.fields) {
      try {
        const value = field.fields ? field.value() : field.read(); // that some aren't right is said once, outside
        if (value !== EMPTY) found[field.name] = value;
      } catch (error) {
        problem ??= error;
      }
    }
    if (problem) throw new Error("some values aren't right");
    return found;
  }
}
