/** Requests to the server, what goes wrong with them, and JSON whose whole numbers stay exact. */

export const ROOT = document.documentElement.dataset.root ?? "";
const API = `${ROOT}/api/v1`;

/** What the server said about a request that failed: its `code`, and a message for people. */
export class Problem extends Error {
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
export function urlOf(path, query = {}) {
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

/** Get a cookie for a token that was typed. */
export async function logIn(token) {
  const headers = { authorization: `Bearer ${token}` };
  const response = await fetch(`${ROOT}/session`, { method: "POST", headers });
  if (!response.ok) throw await problemOf(response);
}

async function ask(method, url, body, options) {
  const response = await send(method, url, body, options);
  return parseExact(await response.text());
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

/** A value as JSON text, in one line or indented. */
export function textOf(value, indent = 0) {
  if (!hasBigInt(value)) return JSON.stringify(value, null, indent);
  return JSON.stringify(value, (key, each) => (typeof each === "bigint" ? rawNumber(each) : each), indent);
}

function hasBigInt(value) {
  if (typeof value === "bigint") return true;
  if (typeof value !== "object" || value === null) return false;
  return Object.values(value).some(hasBigInt);
}

function rawNumber(value) {
  return JSON.rawJSON ? JSON.rawJSON(value.toString()) : value.toString();
}
