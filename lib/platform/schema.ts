// Records of others: what other processes, releases, machines and people have written. A schema is a check that is made of checks.
import { sanitize } from './text.ts';

/** A part of JSON Schema. */
export type JSONSchema = { readonly [key: string]: unknown };

/** Checks a value, and returns it as it may be used. @param path where the value stands @throws Mismatch */
export interface Check<T = unknown> {
  (value: unknown, path: string): T;
  /** The JSON Schema of such values; missing: no document describes them. */
  json?: JSONSchema;
  /** Whether the key of such a field may be missing. */
  isOptional?: boolean;
}
export type Checked<C> = C extends Check<infer T> ? T : never;

/** Thrown for a value that isn't what it should be. The message says where the value stands. */
export class Mismatch extends Error {}

type Fields = Readonly<Record<string, Check>>;
type OptionalKeys<F extends Fields> = {
  [K in keyof F]: undefined extends Checked<F[K]> ? K : never;
}[keyof F];
type Flat<T> = { [K in keyof T]: T[K] };
export type CheckedFields<F extends Fields> = Flat<
  { [K in Exclude<keyof F, OptionalKeys<F>>]: Checked<F[K]> } & {
    [K in OptionalKeys<F>]?: Exclude<Checked<F[K]>, undefined>;
  }
>;

/** Gives a new check its JSON Schema. */
export function shaped<T>(json: JSONSchema, check: Check<T>): Check<T> {
  check.json = json;
  return check;
}

/** The same check, with a description. */
export function described<T>(check: Check<T>, description: string): Check<T> {
  const same: Check<T> = (value, path) => check(value, path);
  if (check.isOptional) same.isOptional = true;
  return shaped({ ...check.json, description }, same);
}

/** JSON Schema of a value that may be null. */
function orNull({ type, enum: values, ...rest }: JSONSchema): JSONSchema {
  if (typeof type !== 'string')
    return { anyOf: [{ ...rest, ...(values ? { enum: values } : {}) }, { type: 'null' }] };
  return { type: [type, 'null'], ...(Array.isArray(values) ? { enum: [...values, null] } : {}), ...rest };
}

/** The largest time of a `Date`, in ms since 1970. */
const MAX_TIME_MS = 8.64e15;

export const text: Check<string> = shaped({ type: 'string' }, (value, path) => {
  if (typeof value === 'string') return value;
  throw new Mismatch(path);
});

/** Accepts a text, and makes it harmless to show. */
export const shownText = (maxLength: number): Check<string> =>
  shaped({ type: 'string' }, (value, path) => sanitize(text(value, path), maxLength));

export const matching =
  (pattern: RegExp): Check<string> =>
  (value, path) => {
    if (typeof value === 'string' && pattern.test(value)) return value;
    throw new Mismatch(path);
  };

/** Accepts an absolute path. */
export const absolutePath: Check<string> = (value, path) => {
  if (isAbsolutePath(value)) return value;
  throw new Mismatch(path);
};

/** The rule for paths of users, of the environment and of records. */
export function isAbsolutePath(value: unknown): value is string {
  return typeof value === 'string' && value.startsWith('/') && !value.includes('\0');
}

export const flag: Check<boolean> = shaped({ type: 'boolean' }, (value, path) => {
  if (typeof value === 'boolean') return value;
  throw new Mismatch(path);
});

/** Accepts a number in a range. */
export const amount = (max = Number.MAX_SAFE_INTEGER, min = 0): Check<number> =>
  shaped({ type: 'number' }, (value, path) => {
    if (typeof value === 'number' && value >= min && value <= max) return value;
    throw new Mismatch(path);
  });

/** Accepts an integer in a range. */
export const whole = (max = Number.MAX_SAFE_INTEGER, min = 0): Check<number> =>
  shaped({ type: 'integer' }, (value, path) => {
    const number = amount(max, min)(value, path);
    if (Number.isSafeInteger(number)) return number;
    throw new Mismatch(path);
  });

/** Accepts a time in ms since 1970. */
export const epochMs: Check<number> = amount(MAX_TIME_MS, -MAX_TIME_MS);

export const among = <const T extends string>(values: readonly T[]): Check<T> =>
  shaped({ type: 'string', enum: values }, (value, path) => {
    const found = values.find((each) => each === value);
    if (found !== undefined) return found;
    throw new Mismatch(path);
  });

/** Accepts a value that may be null or missing. */
export const nullable =
  <T>(check: Check<T>): Check<T | null> =>
  (value, path) =>
    value === null || value === undefined ? null : check(value, path);

/** Accepts a value that may be missing. */
export function optional<T>(check: Check<T>): Check<T | undefined> {
  const read: Check<T | undefined> = (value, path) => (value === undefined ? undefined : check(value, path));
  read.isOptional = true;
  return check.json === undefined ? read : shaped(check.json, read);
}

/** Accepts any value. One that is missing or makes no sense is replaced, so that it doesn't hide the others. */
export function or<T, const U>(check: Check<T>, otherwise: U): Check<T | U> {
  const read: Check<T | U> = (value, path) => {
    if (value === null || value === undefined) return otherwise;
    try {
      return check(value, path);
    } catch (error) {
      if (error instanceof Mismatch) return otherwise;
      throw error;
    }
  };
  if (otherwise === undefined) read.isOptional = true;
  return check.json === undefined ? read : shaped(otherwise === null ? orNull(check.json) : check.json, read);
}

/** Accepts a list of at most `max` entries. */
export const listOf = <T>(check: Check<T>, max = Number.POSITIVE_INFINITY): Check<T[]> =>
  shaped({ type: 'array', items: check.json }, (value, path) => {
    if (!Array.isArray(value) || value.length > max) throw new Mismatch(path);
    return value.map((entry, i) => check(entry, `${path}[${i}]`));
  });

/** Accepts any value: the entries of a list that are right. */
export const validOf = <T>(check: Check<T>): Check<T[]> =>
  shaped({ type: 'array', items: check.json }, (value, path) => {
    if (!Array.isArray(value)) return [];
    return value.flatMap((entry) => {
      const read = or(check, undefined)(entry, path);
      return read === undefined ? [] : [read];
    });
  });

export const pairOf =
  <A, B>(first: Check<A>, second: Check<B>): Check<[A, B]> =>
  (value, path) => {
    if (!Array.isArray(value) || value.length !== 2) throw new Mismatch(path);
    return [first(value[0], `${path}[0]`), second(value[1], `${path}[1]`)];
  };

/** Accepts any object that isn't a list. */
export const object: Check<Readonly<Record<string, unknown>>> = (value, path) => {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Mismatch(path);
  return { ...value };
};

/** Accepts an object with these fields. Other fields are left out. */
export const record =
  <const F extends Fields>(fields: F): Check<CheckedFields<F>> =>
  (value, path) => {
    const source = object(value, path);
    const checked: Record<string, unknown> = {};
    for (const key in fields) {
      const field = fields[key]?.(Object.hasOwn(source, key) ? source[key] : undefined, `${path}.${key}`);
      if (field !== undefined) checked[key] = field;
    }
    return checked as CheckedFields<F>;
  };

/** JSON Schema of an object with these fields. */
export function objectSchema(fields: Fields): JSONSchema {
  const all = Object.entries(fields);
  return {
    type: 'object',
    required: all.filter(([, { isOptional }]) => !isOptional).map(([name]) => name),
    properties: Object.fromEntries(all.map(([name, { json = {} }]) => [name, json])),
  };
}

/** Accepts JSON of such a value. */
export const jsonOf =
  <T>(check: Check<T>): Check<T> =>
  (value, path) => {
    const json = text(value, path);
    let parsed: unknown;
    try {
      parsed = JSON.parse(json);
    } catch {
      throw new Mismatch(path); // the text is no JSON
    }
    return check(parsed, path);
  };

/** Accepts the same numbers as text: databases keep them so. */
export const numeric =
  <T>(check: Check<T>): Check<T> =>
  (value, path) =>
    check(typeof value === 'string' && value.trim() !== '' ? Number(value) : value, path);

/** Reads a value. null: it isn't such a one. */
export function readAs<T>(check: Check<T>, value: unknown): T | null {
  return or(check, null)(value, '');
}
