/** Requests to the server, its live events, what goes wrong, and JSON whose whole numbers stay exact. */

import { ROOT, settings } from "./reader.js";

const API = `${ROOT}/api/v1`;

/** What the server said about a request that failed: its `code`, and a message for people. */
class Problem extends Error {
  constructor(details) {
    super(details.detail ?? details.title ?? "the request failed");
    this.code = details.code ?? "unknown";
    this.status = details.status ?? 0;
  }
}

let whenLoggedOut = () => {};

/** Call this when the server needs a token. */
export function onLoggedOut(callback) {
  whenLoggedOut = callback;
}

/** The URL of a route, with the values of its query that aren't empty; lists are repeated. */
function urlOf(path, query = {}) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") pairs.append(name, each);
    }
  }
  const text = pairs.toString();
  return `${API}${path}${text ? `?${text}` : ""}`;
}

/** The path of a run in the API, or of something of it. */
export function runPath(id, rest = "") {
  return `/runs/${encodeURIComponent(id)}${rest}`;
}

/** What the server answers to a GET. Raises `Problem`. */
export function get(path, query, options = {}) {
  return ask("GET", urlOf(path, query), undefined, options);
}

/** What the server answers to a POST. */
export function post(path, body = {}, query) {
  return ask("POST", urlOf(path, query), body);
}

/** What the server answers to a DELETE. */
export function remove(path) {
  return ask("DELETE", urlOf(path));
}

/** A text, such as a picture, that the server answers with. */
export async function getText(path, query) {
  const response = await send("GET", urlOf(path, query));
  return response.text();
}

/** Save what the server answers as a file. */
export async function download(path, name) {
  const response = await send("GET", urlOf(path));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000); // some browsers read it only after the click
}

/** Get a cookie for a token that was typed. */
export async function logIn(token) {
  const headers = { authorization: `Bearer ${token}` };
  const response = await fetch(`${ROOT}/session`, { method: "POST", headers });
  if (!response.ok) throw await problemOf(response);
}

async function ask(method, url, body, options) {
  const response = await send(method, url, body, options);
  return (options?.parse ?? parseExact)(await response.text());
}

async function send(method, url, body, options = {}) {
  const request = { method, headers: {}, signal: options.signal };
  if (body !== undefined) {
    request.headers["content-type"] = "application/json";
    request.body = textOf(body);
  }
  let response;
  try {
    response = await fetch(url, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ code: "no-server", detail: "the server doesn't answer: is limpet serve still running?" });
  }
  if (response.ok) return response;
  if (response.status === 401) whenLoggedOut();
  throw await problemOf(response);
}

async function problemOf(response) {
  try {
    return new Problem(await response.json());
  } catch {
    return new Problem({ status: response.status, detail: `the server answered ${response.status}` });
  }
}

const LONG_NUMBER = /\d{16}/;
const WHOLE = /^-?\d+$/;

/** The value of a JSON text. */
export function parseExact(text) {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    return context && WHOLE.test(context.source) ? BigInt(context.source) : value;
  });
}

/** The same for a value that will be written again: its numbers stay as they are written, 2.0 as well as 1e400. */
export function parseAsWritten(text) {
  if (!JSON.rawJSON) return parseExact(text);
  return JSON.parse(text, (key, value, { source }) =>
    typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value,
  );
}

/** A value as JSON text, in one line or indented. */
export function textOf(value, indent = 0) {
  return JSON.stringify(value, (key, each) => (typeof each === "bigint" ? rawNumber(each) : each), indent);
}

function rawNumber(value) {
  return JSON.rawJSON ? JSON.rawJSON(value.toString()) : value.toString();
}

/** How long to wait before a stream that ended is opened again, in milliseconds. */
const RETRY_DELAYS = [1000, 2000, 4000, 10000];

/**
 * Follow a stream. `after` is called for the place from which to continue; `take` gets each message, with its type,
 * its data as text, and its id; `changed` is called when the connection is made or lost.
 */
export class LiveStream {
  constructor({ path, kinds, after, take, changed = () => {} }) {
    this.path = path;
    this.kinds = kinds;
    this.after = after;
    this.take = take;
    this.changed = changed;
    this.state = "wait";
    this.failures = 0;
    this.hasEnded = false;
    this.whenVisible = () => this.check();
    document.addEventListener("visibilitychange", this.whenVisible);
    this.check();
  }

  /** Connect or disconnect, as the page is to be live or not. */
  check() {
    const isWanted = !settings.paused && !document.hidden && !this.hasEnded;
    if (isWanted && !this.source) this.connect();
    if (!isWanted && this.source) this.disconnect();
  }

  connect() {
    clearTimeout(this.timer);
    this.source = new EventSource(urlOf(this.path, { after: this.after() }));
    this.source.onopen = () => this.become("on");
    this.source.onerror = () => this.tryLater();
    for (const kind of this.kinds) {
      this.source.addEventListener(kind, (event) => {
        this.failures = 0;
        this.problem = null;
        this.take(kind, event.data, event.lastEventId);
      });
    }
    this.source.addEventListener("end", () => this.end());
    this.source.addEventListener("problem", ({ data }) => this.fail(JSON.parse(data)));
  }

  disconnect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.become("off");
  }

  /** The server can't go on: for now, or as what it reads is damaged. */
  fail({ status, detail }) {
    this.problem = detail;
    if (status === 503) this.tryLater();
    else this.end();
  }

  /** Nothing more will come. */
  end() {
    this.hasEnded = true;
    this.disconnect();
  }

  tryLater() {
    this.disconnect();
    this.become("lost");
    const delay = RETRY_DELAYS[Math.min(this.failures, RETRY_DELAYS.length - 1)];
    this.failures += 1;
    this.timer = setTimeout(() => this.check(), delay);
  }

  become(state) {
    if (this.state === state) return;
    this.state = state;
    this.changed(state);
  }

  close() {
    document.removeEventListener("visibilitychange", this.whenVisible);
    this.hasEnded = true;
    this.disconnect();
  }
}
