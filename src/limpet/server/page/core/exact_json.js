/** JSON whose whole numbers stay exact: those that a JavaScript number can't hold become a `BigInt`. */

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
