/** How things are done: forms that do them here, and the command line and the Python for the same, to copy. */

import { textOf } from "../core/api.js";
import { h, refresh } from "../core/dom.js";
import { attempt, closeDialog, closeIfOpen, openDialog, say } from "./dialog.js";

/** Both, closed until they are asked for. */
export function codePanel(code) {
  return h(
    "details.code-panel",
    h("summary", "The same as a command line and in Python"),
    codeBlock("Command line", code.cli),
    codeBlock("Python", code.python),
  );
}

/** A text of code with its title and a button that copies it. */
export function codeBlock(title, text) {
  return h(
    "figure.code",
    h(
      "figcaption",
      title,
      copyButton("copy", () => text, "copied"),
    ),
    h("pre", h("code", text)),
  );
}

/** Copy a text, and say so. */
export async function copy(text, what = "copied") {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    say("the browser refuses to copy here; select the text instead"); // it needs https, or this machine
    return;
  }
  say(what);
}

/** A button that copies; `text` is called when it is clicked. */
export function copyButton(label, text, what) {
  return h("button.small", { type: "button", onclick: async () => copy(await text(), what) }, label);
}

/** A button that copies a value as JSON. */
export function copyJsonButton(value) {
  return copyButton("copy JSON", () => textOf(value, 2), "copied as JSON");
}

/** A word as a shell takes it. */
function word(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** A value as Python writes it. */
function pythonValue(value) {
  if (JSON.isRawJSON?.(value)) return value.rawJSON;
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value !== "object") return String(value);
  const pairs = Object.entries(value).map(([name, each]) => `${pythonText(name)}: ${pythonValue(each)}`);
  return `{${pairs.join(", ")}}`;
}

function pythonText(text) {
  return JSON.stringify(text); // what it escapes, Python escapes in the same way
}

let storeUrl = "";

/** Name the store in commands and in Python, if it can be opened by its name alone: passwords aren't in it. */
export function setStore(name) {
  storeUrl = /^(sqlite|file):.*[^)]$/.test(name) ? name : "";
}

/** The store, as Python names it. */
function storeText() {
  return storeUrl ? pythonText(storeUrl) : "STORE";
}

function python(line, graphs = "") {
  const about = storeUrl ? "" : '  # such as "sqlite:///runs.db"';
  return `from limpet import Runs\n\nruns = Runs(${storeText()}${graphs})${about}\n${line}`;
}

/** A command with what it takes at its end: what begins as an option does is told from one. */
function command(verb, ...texts) {
  const end = texts.some((each) => each.startsWith("-")) ? " --" : "";
  return ["limpet", verb + option("store", storeUrl) + end, ...texts.map(word)].join(" ");
}

/** What is said where the server would need the code of a graph. */
export function needsGraph() {
  return h(
    "p",
    "The server doesn't have the code of this graph, which this needs. Start it with ",
    h("code", "limpet serve --graph MODULE:GRAPH"),
  );
}

const GRAPHS = ", graphs=[graph]";
const GRAPH_OPTION = " --graph MODULE:GRAPH";

function option(name, text) {
  return text ? ` --${name}${text.startsWith("-") ? "=" : " "}${word(text)}` : "";
}

/** Values as a command takes them, each after an option. */
function pairs(name, values) {
  return Object.entries(values)
    .map(([key, value]) => option(name, `${key}=${textOf(value)}`))
    .join("");
}

/** To retry, cancel or delete a run. */
export function runCode(verb, id) {
  return { cli: command(`runs ${verb}`, id), python: python(`runs.${verb}(${pythonText(id)})`) };
}

/** To answer a question with a value, or to approve a run if there is none. `by` is who does. */
export function answerCode(id, question, value, by) {
  const shown = question?.secret ? "…" : value;
  const answers = question ? `, answers={${pythonText(question.id)}: ${pythonValue(shown)}}` : "";
  return {
    cli: command(`answer --detach${option("by", by)}`, id, ...(question ? [question.id, textOf(shown)] : [])),
    python: python(`runs.answer(${pythonText(id)}${answers}${by && `, by=${pythonText(by)}`})`),
  };
}

/** To send a message. */
export function sendCode(id, name, value) {
  return {
    cli: command("runs send", id, name, textOf(value)),
    python: python(`runs.send(${pythonText(id)}, ${pythonText(name)}, ${pythonValue(value)})`),
  };
}

/** To fork a run after a step, with edits, and perhaps to `begin` at once. */
export function forkCode(id, step, update, newId, begin) {
  const named = newId ? `, new_run_id=${pythonText(newId)}` : "";
  const edits = Object.keys(update).length ? `, ${pythonValue(update)}` : "";
  const fork = `new_id = runs.fork(${pythonText(id)}, ${step}${edits}${named})`;
  const options = `--step ${step}${pairs("set", update)}${option("id", newId)}${begin ? " --begin" : ""}`;
  return {
    cli: command(`runs fork ${options}${GRAPH_OPTION}`, id),
    python: python(begin ? `${fork}\nruns.retry(new_id)  # hands it to the workers` : fork, GRAPHS),
  };
}

/** To set a run back. */
export function rollbackCode(id, step) {
  return {
    cli: command(`runs rollback${GRAPH_OPTION}`, id, String(step)),
    python: python(`runs.rollback(${pythonText(id)}, ${step})`, GRAPHS),
  };
}

/** To look at the state of a run. */
export function stateCode(id, step, branch = "") {
  const after = step === null ? "" : String(step);
  const inBranch = branch && `, branch=${pythonText(branch)}`;
  return {
    cli: command(`runs state${option("step", after)}${option("branch", branch)}`, id),
    python: python(`runs.state(${pythonText(id)}${after && `, ${after}`}${inBranch})`),
  };
}

/** To compare the states of runs: each has the `id` and the `step` of one. */
export function compareCode(sides) {
  const commands = sides.map(({ id, step }) => `<(${stateCode(id, step).cli})`);
  const states = sides.map(({ id, step }) => `runs.state(${[pythonText(id), step ?? []].flat().join(", ")})`);
  return { cli: `diff ${commands.join(" ")}`, python: python(`before, after = ${states.join(", ")}`) };
}

/** To start a run; `tags` is a list. */
export function startCode(graph, input, { id, queue, tags }) {
  const named = Object.entries({ run_id: id, queue, tags }).filter(([, value]) => value.length);
  const rest = named.map(([name, value]) => `, ${name}=${pythonValue(value)}`).join("");
  const tagOptions = tags.map((tag) => option("tag", tag)).join("");
  return {
    cli: `${command("run MODULE:GRAPH")}${pairs("input", input)}${option("id", id)}${option("queue", queue)}${tagOptions} --detach`,
    python: `graph.start(${pythonValue(input)}${rest})  # graph is ${pythonText(graph)}`,
  };
}

/** To pause, resume, trigger or delete a schedule. */
export function scheduleCode(verb, name) {
  return {
    cli: command(`schedules ${verb}`, name),
    python: `from limpet import Schedules\n\nSchedules(${storeText()}).${verb}(${pythonText(name)})`,
  };
}

/** Filters whose options have other names. */
const OPTIONS = { graph: "of", all_runs: "all" };

/** To do something with runs: those with these `ids`, or all that match `filters`. */
export function bulkCode(verb, filters, ids) {
  if (ids) {
    return {
      cli: command(`runs ${verb}`, ...ids),
      python: python(`runs.${verb}(${pythonValue(ids)})`),
    };
  }
  const options = Object.entries(filters).flatMap(([name, value]) => {
    const shown = OPTIONS[name] ?? name.replaceAll("_", "-");
    return [value].flat().map((each) => (each === true ? ` --${shown}` : option(shown, String(each))));
  });
  const named = Object.entries(filters).map(([name, value]) => `${name}=${pythonValue(value)}`);
  return {
    cli: command(`runs ${verb}${options.join("")}`),
    python: python(`runs.${verb}(${named.join(", ")})`),
  };
}

/**
 * A form that does something: what it is `about`, what it asks, the code that does the same, and the button that
 * starts it. `work` has `isWorking` and `problem`, and is changed by it.
 */
export function actionForm({ work, title, about, ask = null, code = null, tone = "primary", isReady = true, action }) {
  const start = async (event) => {
    event.preventDefault();
    if (work.isWorking) return;
    Object.assign(work, { isWorking: true, problem: "" });
    refresh();
    await attempt(action, work);
    work.isWorking = false;
    refresh();
  };
  return h(
    "form",
    { onsubmit: start },
    h("p", about),
    ask,
    work.problem && h("p.field-problem", { role: "alert" }, work.problem),
    code && codePanel(code),
    h(
      "div.dialog-actions",
      h("button", { type: "button", onclick: closeDialog }, "Close"),
      h(
        "button",
        { class: tone, disabled: work.isWorking || !isReady, autofocus: !ask },
        work.isWorking ? "working …" : title,
      ),
    ),
  );
}

/** Ask whether to do something, and do it. `ask` and `code` may be functions, which are called for each view. */
export function confirm({ title, about, code, ask, tone, action, whenDone = () => {}, stays = false }) {
  const work = {};
  const start = async () => {
    const result = await action();
    if (!stays) closeIfOpen(view);
    whenDone(result);
  };
  const view = () => actionForm({ work, title, about, tone, ask: ask?.(), code: code?.(), action: start });
  openDialog({ title, view });
}

/** An input with its label, for a value of `target`. */
export function textField(label, target, name, properties = {}) {
  const set = (event) => {
    target[name] = event.target.value;
    refresh();
  };
  return h(
    "label.field",
    label,
    " ",
    h("input", { value: target[name], autocomplete: "off", oninput: set, ...properties }),
  );
}
