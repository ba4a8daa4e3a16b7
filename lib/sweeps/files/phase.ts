import { normalize } from 'node:path';
import { sanitize, showValue } from '../../platform/index.ts';
import { formatValue, type TaskSpec, type Value } from '../task/index.ts';
import {
  type CommandTemplate,
  checkPlaceholder,
  checkPlaceholders,
  fillTemplate,
  mistake,
  parseTemplate,
  type SourceLocation,
} from './command.ts';
import type { Distribution } from './distribution.ts';

/** A phase as it was written. */
export interface PhaseSource {
  readonly name: string;
  readonly location: SourceLocation;
  /** The parameters with one value, in their order. `output_dir` may be among them. */
  readonly fixed: ReadonlyMap<string, Given>;
  /** The first varies slowest. */
  readonly axes: readonly Axis[];
  readonly command: CommandTemplate | null;
  /** Absent: its file doesn't say it. */
  readonly retries?: number;
}

/** A part of a sweep. Nothing of the size of the product is kept. */
export interface Phase {
  readonly name: string;
  readonly size: number;
  /** The parameters that vary, and how many values each has; null: too many to count. In a grid, they are the factors of the size. */
  readonly factors: readonly { readonly name: string; readonly count: number | null }[];
  /** Lines of a file of commands that are there already: they make no tasks. Absent: none. */
  readonly repeatedLines?: number;
  tasks(): Iterable<TaskSpec>;
}

export const MAX_PARAMETERS = 1000;
const OUTPUT = 'output_dir';
/** Placeholders have the name of the phase under this one. */
export const PHASE = 'phase';
export const DEFAULT_OUTPUT = 'results_{phase}';

export function defaultOutputOf(phase: string): string {
  return DEFAULT_OUTPUT.replace('{phase}', () => phase);
}

/** Larger phases have only their first task tried. */
const MAX_TRIED = 100_000;
/** For a plan without a command. */
const NO_COMMAND = { words: [] };

/**
 * Each task is made once for a test: what is wrong with one shall not come up when half of them are done.
 * @throws for placeholders that name nothing
 */
export function compilePhase(source: PhaseSource): Phase {
  const { name, axes } = source;
  for (const { key, location, distribution } of axes) {
    if (distribution === undefined) continue;
    throw mistake(
      location,
      `only a search can choose from these values of ${showValue(key)}: add --method random, or another method. Ranges of a grid must have whole decimal numbers, such as 42..44 or 0..10..2`,
    );
  }
  const make = taskMakerOf(source);
  const counts = axes.map(countOf);
  const values = axes.map(valuesOf);
  const makeAt = (indices: readonly number[]) =>
    make((axis) => (values[axis] as (typeof values)[0])(indices[axis] as number));
  const size = counts.reduce((all, count) => all * count, 1);
  if (size > MAX_TRIED) makeAt(axes.map(() => 0));
  else for (const indices of product(counts)) makeAt(indices);
  return {
    name,
    size,
    factors: axes.map(({ key }, i) => ({ name: key, count: counts[i] as number })),
    *tasks() {
      for (const indices of product(counts)) yield makeAt(indices);
    },
  };
}

/** Makes tasks from a value for each axis. @throws for placeholders that name nothing */
export function taskMakerOf(source: PhaseSource): (choose: (axis: number) => Value) => TaskSpec {
  const { name, axes, command, location } = source;
  const outputAxis = axes.findIndex(({ key }) => key === OUTPUT);
  const parameters: Record<string, Value> = {};
  for (const [key, { value }] of source.fixed) if (key !== OUTPUT) parameters[key] = value;
  for (const { key } of axes) if (key !== OUTPUT) parameters[key] = null;
  const known = Object.keys(parameters);
  const directoryOf = (text: string, where: SourceLocation) => {
    const refuse = (why: string) => mistake(where, `${showValue(OUTPUT)}: ${why}`);
    const template = parseTemplate(text, refuse);
    for (const each of template.names) checkPlaceholder(each, [...known, PHASE], refuse);
    return (textOf: (each: string) => string) =>
      outputDirectory(fillTemplate(template, textOf), (why) => mistake(where, why));
  };
  const fixed = source.fixed.get(OUTPUT) ?? { value: DEFAULT_OUTPUT, location };
  const ofFixed = directoryOf(formatValue(fixed.value), fixed.location);
  const ofAxis = new Map<string, ReturnType<typeof directoryOf>>();
  for (const each of axes[outputAxis]?.segments ?? []) {
    if ('step' in each) continue;
    const text = formatValue(each.value);
    ofAxis.set(text, directoryOf(text, each.location));
  }
  if (command !== null)
    checkPlaceholders(command, [...known, OUTPUT, PHASE], `the command, in phase ${showValue(name)}`);
  return (choose) => {
    const values = { ...parameters };
    for (const [axis, { key }] of axes.entries()) if (axis !== outputAxis) values[key] = choose(axis);
    const textOf = (each: string) =>
      each === PHASE && !(PHASE in values) ? name : formatValue(values[each] as Value);
    const text = outputAxis < 0 ? null : formatValue(choose(outputAxis));
    const directory = text === null ? ofFixed : (ofAxis.get(text) ?? directoryOf(text, location));
    const place = directory(textOf);
    return {
      phase: name,
      outputDirectory: place,
      parameters: values,
      command: command?.fill((each) => (each === OUTPUT ? place : textOf(each))) ?? NO_COMMAND,
      ...(source.retries !== undefined && { retries: source.retries }),
    };
  };
}

/** A value of a parameter, and where it was written. */
export interface Given {
  readonly value: Value;
  readonly location: SourceLocation;
}

/** Whole numbers, counted rather than kept. */
export interface Range {
  readonly first: number;
  readonly step: number;
  readonly count: number;
}

/** A parameter with several values. */
export interface Axis {
  readonly key: string;
  readonly location: SourceLocation;
  readonly segments: readonly (Given | Range)[];
  /** Values for searches, instead of the segments. */
  readonly distribution?: Distribution;
}

function countOf({ segments }: Axis): number {
  return segments.reduce((sum, each) => sum + ('step' in each ? each.count : 1), 0);
}

/** The value of an axis by its number. */
function valuesOf({ segments }: Axis): (at: number) => Value {
  if (!segments.some((each) => 'step' in each)) return (at) => (segments[at] as Given).value;
  return (at) => {
    let rest = at;
    for (const each of segments) {
      if (!('step' in each)) {
        if (rest-- === 0) return each.value;
      } else {
        if (rest < each.count) return each.first + rest * each.step;
        rest -= each.count;
      }
    }
    throw new RangeError('beyond the axis');
  };
}

/** All combinations, the last varying fastest. The same array each time. */
function* product(counts: readonly number[]): Generator<readonly number[]> {
  const indices = counts.map(() => 0);
  for (;;) {
    yield indices;
    let i = counts.length - 1;
    while (i >= 0 && indices[i] === (counts[i] as number) - 1) indices[i--] = 0;
    if (i < 0) return;
    indices[i] = (indices[i] as number) + 1;
  }
}

const MAX_NAME_LENGTH = 100;

/** Checks a parameter's name. @param refuse makes the error */
export function checkParameterName(name: string, refuse: (why: string) => Error): void {
  if (name === '') throw refuse('a parameter needs a name');
  if (name.split('.').includes('__proto__')) throw refuse(`a parameter can't be called ${name}`);
  if (name.length > MAX_NAME_LENGTH)
    throw refuse(`${showValue(name)} is longer than ${MAX_NAME_LENGTH} characters`);
  if (sanitize(name) !== name || /[{}]/.test(name)) {
    throw refuse(
      `the name ${showValue(name)} has characters that aren't allowed in names of parameters (braces, control characters, blanks at its ends)`,
    );
  }
}

/** Checks a phase's name, which begins the names of tasks and of files. @param refuse makes the error */
export function checkPhaseName(name: string, refuse: (why: string) => Error): void {
  if (name === '') throw refuse('a phase needs a name');
  if (name.length > MAX_NAME_LENGTH)
    throw refuse(`the name ${showValue(name)} is longer than ${MAX_NAME_LENGTH} characters`);
  if (sanitize(name) !== name || /^[-.]|[/\\{}*?]|\s/.test(name)) {
    throw refuse(
      `a phase can't be called ${showValue(name)}: names of tasks and directories begin with it; use letters, digits, _ and -`,
    );
  }
}

/** Limits of Linux: for a name, and for a path with room for what is below it. */
const MAX_FILE_NAME_BYTES = 255;
const MAX_PATH_BYTES = 3800;

/**
 * An output directory as destinations have it: `results/./a/` is `results/a`. Relative ones are the project's; absolute ones and `..`
 * are allowed, since results often go to another disk.
 * @param refuse makes the error for what can't be a directory
 */
export function outputDirectory(path: string, refuse: (why: string) => Error): string {
  const shown = `output_dir '${sanitize(path, 80)}'`;
  if (path.trim() === '') throw refuse('output_dir is empty; the current directory is .');
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  if (/[\x00-\x1f\x7f]/.test(path)) throw refuse(`${shown} has a line break or another control character`);
  if (path.startsWith('~')) {
    throw refuse(
      `${shown}: only a shell expands ~; write the path of the home directory, or ./~ for such a name`,
    );
  }
  const normal = normalize(path).replace(/(?<=.)\/$/, '');
  if (Buffer.byteLength(normal) > MAX_PATH_BYTES)
    throw refuse(`${shown} is longer than ${MAX_PATH_BYTES} bytes`);
  const long = normal.split('/').find((name) => Buffer.byteLength(name) > MAX_FILE_NAME_BYTES);
  if (long !== undefined) throw refuse(`${shown}: a name in it is longer than ${MAX_FILE_NAME_BYTES} bytes`);
  return normal;
}
