import { showValue } from '../../platform/index.ts';
import { Literal, numberInString, type Value } from '../task/index.ts';
import { type Axis, checkParameterName, type Given, type Range } from './phase.ts';
import { mistake, type SourceLocation } from './source-location.ts';
import { plainScalar, type ReadScalar, readYAMLTree, toValue } from './yaml-tree.ts';

const EXAMPLE = 'width=1,2 seed=42..44';
const QUOTED = /'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"/sy;
const RANGE = /^(.+?)\.\.(.+?)(?:\.\.(.+))?$/s;

/**
 * The axes of an inline grid: `width=1,2`, `seed=42..44`, `lr=1e-3,1e-4`, `name='a,b',c`, `layers=[64,64],[128]`. Values are scalars
 * as in sweep files, but `1e-3` is a number; ranges are of whole numbers and include both ends, `0..10..2` has a step.
 * @throws ERR_INVALID_ARGUMENT
 */
export function parseGrid(words: readonly string[]): Axis[] {
  const axes = new Map<string, Axis>();
  for (const word of words) {
    const sign = word.indexOf('=');
    if (sign < 0) {
      throw mistake(
        { option: '--grid' },
        `${showValue(word)} has no '='; use NAME=VALUE,VALUE, such as ${EXAMPLE}`,
      );
    }
    const key = word.slice(0, sign);
    const location = { option: `--grid ${showValue(word)}` };
    checkParameterName(key, (why) => mistake(location, why));
    if (axes.has(key))
      throw mistake(location, `${showValue(key)} is given twice; put all its values into one list`);
    const segments = splitValues(word.slice(sign + 1), location).map((text) => segment(key, text, location));
    axes.set(key, { key, location, segments });
  }
  return Array.from(axes.values());
}

function splitValues(text: string, location: SourceLocation): string[] {
  if (text === '') throw mistake(location, `it has no values; use NAME=VALUE,VALUE, such as ${EXAMPLE}`);
  const values: string[] = [];
  let value = '';
  let depth = 0;
  for (let i = 0; i < text.length; i++) {
    // Quotes count where a value begins, and in lists.
    QUOTED.lastIndex = i;
    const quoted = depth > 0 || value.trim() === '' ? QUOTED.exec(text) : null;
    const piece = quoted?.[0] ?? (text[i] as string);
    i += piece.length - 1;
    if (piece === '[' && (depth > 0 || value.trim() === '')) depth++;
    if (piece === ']' && depth > 0) depth--;
    if (piece === ',' && depth === 0) {
      values.push(value);
      value = '';
    } else {
      value += piece;
    }
  }
  values.push(value);
  return values.map((each) => each.trim());
}

function segment(key: string, text: string, location: SourceLocation): Given | Range {
  const refuse = (why: string) => mistake(location, why);
  if (text === '') throw refuse("a value is missing before or after a comma; write '' for an empty one");
  if (text.includes('\0')) throw refuse('it has the character U+0000');
  if (/^['"[]/.test(text)) {
    const value = quotedOrList(text, refuse);
    if (Array.isArray(value) && (key === 'seed' || key === 'output_dir')) {
      throw refuse(`a value of ${showValue(key)} must be a single one, not a list`);
    }
    return { value, location };
  }
  return range(text, refuse) ?? { value: scalar(text, refuse), location };
}

/** A command line is no file for PyYAML: what looks like a number is one. */
const scalar: ReadScalar = (text, refuse) => {
  const value = plainScalar(text, refuse);
  const number = typeof value === 'string' ? numberInString(value) : null;
  return number === null ? value : new Literal(number, text);
};

/** As in YAML. */
function quotedOrList(text: string, refuse: (why: string) => Error): Value {
  try {
    const node = readYAMLTree(text, '--grid', scalar);
    if (node === null || node.kind === 'map') throw refuse(`${showValue(text)} isn't a value`);
    return toValue(node);
  } catch (error) {
    throw refuse(
      `${showValue(text)} is neither a text in quotes nor a list in brackets (${(error as Error).message.replace(/^--grid:1: /, '')})`,
    );
  }
}

function range(text: string, refuse: (why: string) => Error): Range | null {
  const match = RANGE.exec(text);
  if (match === null) return null;
  const parts = match.slice(1).filter((part) => part !== undefined);
  if (!parts.every((part) => /^[-+]?(?:[.\d][\d.eE_+-]*|0[xob][\da-fA-F_]+)$/.test(part))) return null; // such as ../data
  const numbers = parts.map((part) => (/^-?(?:0|[1-9]\d*)$/.test(part) ? Number(part) : Number.NaN));
  if (!numbers.every(Number.isSafeInteger)) {
    throw refuse(
      `the range ${showValue(text)} must have whole decimal numbers, such as 42..44 or 0..10..2; separate other values with commas`,
    );
  }
  const [first, last, given] = numbers as [number, number, number | undefined];
  const step = given ?? 1;
  if (step === 0) throw refuse(`the range ${showValue(text)} has the step 0`);
  if ((last - first) * step < 0) {
    const right = given === undefined ? `${first}..${last}..-1` : `${first}..${last}..${-given}`;
    throw refuse(`the range ${showValue(text)} is empty; did you mean ${right}?`);
  }
  return { first, step, count: Math.floor((last - first) / step) + 1 };
}
