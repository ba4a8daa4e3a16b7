import {
  canonical,
  formatValue,
  Literal,
  readValue,
  type Task,
  type Value,
  type Values,
} from '../task/index.ts';

// Cells of tables are text, and every program spells values its own way. Two cells mean the same if these texts are equal.
// Coarser than the meaning of parameters (the string "1" is the number 1): what then fits several tasks is reported.

const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/;
const INFINITE = /^([+-]?)\.?inf(?:inity)?$/i;
const NOTHING = /^(?:none|null|~)$/i;
const TRUE = /^(?:true|yes|on)$/i;
const FALSE = /^(?:false|no|off)$/i;
/** First characters of what isn't just a string. */
const SPECIAL = /^[\d+\-.[{(NnTtYyOoFfIi~]/;

/** Writes a value as the text of a cell. Tables are text in UTF-8: they can hold no NUL, and no half of a character. */
export function cellText(value: Value): string {
  return formatValue(value)
    .replaceAll('\u0000', '\ufffd')
    .replace(/\p{Surrogate}/gu, '\ufffd');
}

/** Normalizes a cell: equal answers mean the same. '': it is empty. */
export function normalizeCell(cell: string): string {
  const text = cell.trim();
  if (!SPECIAL.test(text)) return text === '' ? '' : `s${text}`;
  if (NUMBER.test(text)) return number(Number(text));
  if (NOTHING.test(text)) return '';
  if (TRUE.test(text)) return 'true';
  if (FALSE.test(text)) return 'false';
  if (/^\.?nan$/i.test(text)) return 'NaN';
  const infinite = INFINITE.exec(text);
  if (infinite !== null) return infinite[1] === '-' ? '-Infinity' : 'Infinity';
  return nested(text) ?? `s${text}`;
}

/** Normalizes a parameter, as {@link normalizeCell} does cells. */
export function normalizeValue(value: Value): string {
  if (value instanceof Literal) return normalizeValue(value.data);
  if (value === null) return '';
  if (typeof value === 'number') return number(value);
  if (typeof value === 'boolean') return String(value);
  if (typeof value === 'string') return normalizeCell(value);
  if (Array.isArray(value)) return `[${value.map((each) => JSON.stringify(normalizeValue(each))).join(',')}]`;
  const members = value as Values;
  const keys = Object.keys(members).sort();
  const pairs = keys.map((key) => JSON.stringify([key, normalizeValue(members[key] as Value)]));
  return `{${pairs.join(',')}}`;
}

/** A cell as a value: the result that a row has. Numbers stay as they were written. */
export function valueOfCell(cell: string): Value {
  const text = cell.trim();
  if (NUMBER.test(text) || /^(?:NaN|-?Infinity)$/.test(text))
    return readValue(text) ?? new Literal(Number(text), text);
  if (/^(?:True|true|TRUE)$/.test(text)) return text === 'true' ? true : new Literal(true, text);
  if (/^(?:False|false|FALSE)$/.test(text)) return text === 'false' ? false : new Literal(false, text);
  if (/^nan$/i.test(text)) return new Literal(Number.NaN, text);
  const infinite = INFINITE.exec(text);
  if (infinite !== null) {
    return new Literal(infinite[1] === '-' ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY, text);
  }
  if (/^[[{]/.test(text)) return readValue(text) ?? cell;
  return cell;
}

function number(data: number): string {
  return Object.is(data, -0) ? '0' : String(data);
}

function nested(text: string): string | null {
  if (!/^(?:\[.*\]|\{.*\}|\(.*\))$/s.test(text)) return null;
  const value = readValue(text) ?? readValue(pythonAsJSON(text)) ?? null;
  if (value === null) return null;
  try {
    return normalizeValue(value);
  } catch {
    return null; // nested too deeply
  }
}

const PYTHON_TOKENS = /'((?:[^'\\]|\\.)*)'|"(?:[^"\\]|\\.)*"|\b(?:True|False|None|inf|nan)\b|,?\s*\)|\(/g;
const PYTHON_WORDS: Readonly<Record<string, string>> = {
  True: 'true',
  False: 'false',
  None: 'null',
  inf: 'Infinity',
  nan: 'NaN',
  '(': '[',
};

/** As Python's `str` writes lists, tuples and dictionaries of simple values. */
function pythonAsJSON(text: string): string {
  return text.replace(PYTHON_TOKENS, (token, inner: string | undefined) => {
    if (inner !== undefined) return JSON.stringify(inner.replace(/\\(['"\\])/g, '$1'));
    return PYTHON_WORDS[token] ?? (token.endsWith(')') ? ']' : token);
  });
}

/** The column with the names of tasks. */
export const NAME_COLUMN = 'task_id';

/** The name of a parameter's column. */
export function columnOf(parameter: string): string {
  const name = cellText(parameter).trim();
  return name === NAME_COLUMN || name === '' ? `parameter_${name}` : name;
}

const RESULT_PREFIX = 'result_';

/**
 * The cells of a task's row by the names of their columns, in their order: its name, its parameters, its result.
 * @param parameterColumns of all tasks of the table: a result never goes there, or the row would be another task's
 */
export function cellsOf(
  task: Task,
  result: Values,
  parameterColumns: { has(column: string): boolean },
): Map<string, string> {
  const cells = new Map([[NAME_COLUMN, cellText(task.name)]]);
  for (const [key, value] of Object.entries(task.parameters)) cells.set(columnOf(key), cellText(value));
  for (const [key, value] of Object.entries(result)) {
    if (Object.hasOwn(task.parameters, key) && sameValue(task.parameters[key] as Value, value)) continue;
    let column = cellText(key).trim();
    if (column === '') column = RESULT_PREFIX;
    while (parameterColumns.has(column) || cells.has(column)) column = RESULT_PREFIX + column;
    cells.set(column, cellText(value));
  }
  return cells;
}

/** Reads the result of a row: its cells beyond the parameters. Empty cells are left out. */
export function resultOf(
  header: readonly string[],
  cells: readonly string[],
  parameterColumns: { has(column: string): boolean },
): Values {
  const result: Record<string, Value> = {};
  for (const [at, column] of header.entries()) {
    const cell = cells[at] ?? '';
    if (cell === '' || column === '' || column === NAME_COLUMN || parameterColumns.has(column)) continue;
    let key = column;
    while (key.startsWith(RESULT_PREFIX) && parameterColumns.has(key.slice(RESULT_PREFIX.length))) {
      key = key.slice(RESULT_PREFIX.length);
    }
    // As own data, also if it is called `__proto__`.
    Object.defineProperty(result, key, {
      value: valueOfCell(cell),
      enumerable: true,
      configurable: true,
      writable: true,
    });
  }
  return result;
}

function sameValue(one: Value, other: Value): boolean {
  return canonical(one) === canonical(other);
}
