// Values of parameters and results, which keep their spelling.

/**
 * A scalar that is spelt otherwise than JavaScript would spell it: `1.0`, `1e-3`, `yes`, `NaN`. In commands, paths and files it
 * stays as it was written; comparisons see what it means.
 */
export class Literal {
  readonly data: number | boolean | null;
  readonly text: string;

  constructor(data: number | boolean | null, text: string) {
    this.data = data;
    this.text = text;
  }
}

/** A parameter, or a part of a result. */
export type Value =
  | null
  | boolean
  | number
  | string
  | Literal
  | readonly Value[]
  | { readonly [key: string]: Value };

/** The parameters of a task, or the metrics of a result, in their order. */
export type Values = Readonly<Record<string, Value>>;

/** Whether a value is an object. */
export function isValues(value: unknown): value is Values {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Literal);
}

/** Deeper values can be read, but recursion over them would run out of stack. */
const MAX_LEVELS = 200;

/** Strings, so that what looks like a number inside of them is left alone; numbers with what Python's json writes beyond JSON. */
const TOKENS = /"(?:[^"\\]|\\.)*"(?:\s*:)?|[[\]{}]|-?(?:Infinity\b|\d[\d.eE+-]*)|\bNaN\b/g;

const MARK = '\u0000';

const ESCAPED_MARK = '"\\u0000';

const BEYOND_JSON: Readonly<Record<string, number>> = {
  NaN: Number.NaN,
  Infinity: Number.POSITIVE_INFINITY,
  '-Infinity': Number.NEGATIVE_INFINITY,
};

const NUMBER_IN_STRING =
  /^(?:[-+]?\d[\d_]*(?:[eE][-+]?|\.[\d_]*[eE])\d+|\.\d[\d_]*[eE]\d+|[-+]\.\d[\d_]*(?:[eE][-+]?\d+)?)$/;
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

/**
 * JSON, in which numbers keep their spelling; NaN and infinities are accepted, as Python writes them.
 * @throws SyntaxError, also for more than 200 levels of lists and maps
 */
export function parseValue(text: string): Value {
  let levels = 0;
  const marked = text.replace(TOKENS, (token) => {
    if (token === '[' || token === '{') {
      levels += 1;
      if (levels > MAX_LEVELS)
        throw new SyntaxError(`lists and maps are nested more than ${MAX_LEVELS} levels deep`);
      return token;
    }
    if (token === ']' || token === '}') {
      levels -= 1;
      return token;
    }
    if (token.startsWith('"')) {
      // Keys are no values, and the reviver doesn't see them.
      const isMarked = token.startsWith(ESCAPED_MARK) && !token.endsWith(':');
      return isMarked ? `"\\u0000${token.slice(1)}` : token;
    }
    // The parser complains about anything that is no number.
    return token in BEYOND_JSON || NUMBER.test(token) ? `${ESCAPED_MARK}${token}"` : token;
  });
  try {
    return JSON.parse(marked, unmarked) as Value;
  } catch (error) {
    // The message is to show the text as it was written, without marks.
    JSON.parse(text.replace(TOKENS, (token) => (token in BEYOND_JSON ? '0' : token)));
    throw error;
  }
}

/** As {@link parseValue}; undefined: the text is no such JSON. */
export function readValue(text: string): Value | undefined {
  try {
    return parseValue(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function unmarked(_: string, value: unknown): unknown {
  if (typeof value !== 'string' || !value.startsWith(MARK)) return value;
  const token = value.slice(1);
  if (token.startsWith(MARK)) return token; // a string that began with the mark itself
  const data = BEYOND_JSON[token] ?? Number(token);
  return String(data) === token ? data : new Literal(data, token);
}

/** As JSON, numbers as they were written, NaN and infinities as Python's json has them. */
export function stringifyValue(value: Value): string {
  return stringify(value, literal);
}

/** As {@link stringifyValue}, but NaN and infinities are strings: any parser reads it. */
export function strictJSON(value: Value): string {
  return stringify(value, (data) => {
    const text = literal(data);
    return text in BEYOND_JSON ? `"${text}"` : text;
  });
}

function stringify(value: Value, scalar: (data: Literal['data']) => string): string {
  if (value instanceof Literal) return NUMBER.test(value.text) ? value.text : scalar(value.data);
  if (Array.isArray(value)) return `[${value.map((each) => stringify(each, scalar)).join(',')}]`;
  if (typeof value === 'object' && value !== null) {
    return `{${Object.entries(value)
      .map(([key, each]) => `${JSON.stringify(key)}:${stringify(each, scalar)}`)
      .join(',')}}`;
  }
  return typeof value === 'number' ? scalar(value) : JSON.stringify(value);
}

/**
 * The number that a string stands for if YAML 1.1 takes it for a string, and everybody else for a number: `5e-4`, `-.5`. null: it is
 * just a string, as hashes are (`0e99`, `12e4567`), which would all be equal.
 */
export function numberInString(text: string): number | null {
  const data = NUMBER_IN_STRING.test(text) ? Number(text.replaceAll('_', '')) : 0;
  return data !== 0 && Number.isFinite(data) ? data : null;
}

/** The same text for the same meaning: keys in order, numbers without their spelling, also those in strings. */
export function canonical(value: Value): string {
  if (value instanceof Literal) return literal(value.data);
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value === 'object' && value !== null) {
    const members = value as Values;
    return `{${Object.keys(members)
      .sort()
      .map((key) => `${JSON.stringify(key)}:${canonical(members[key] as Value)}`)
      .join(',')}}`;
  }
  const number = typeof value === 'string' ? numberInString(value) : value;
  return typeof number === 'number' ? literal(number) : JSON.stringify(value);
}

/** For commands, paths and cells of tables: scalars as they were written, lists and maps as JSON. */
export function formatValue(value: Value): string {
  if (value === null) return '';
  if (value instanceof Literal) return value.text;
  return typeof value === 'object' ? stringifyValue(value) : String(value);
}

/** JSON has no NaN and no infinities; Python's does, in these words. -0 is 0. */
function literal(data: number | boolean | null): string {
  return Object.is(data, -0) ? '0' : String(data);
}
