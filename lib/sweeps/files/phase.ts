import { normalize } from 'node:path';
import { listWords, sanitize, showValue } from '../../platform/index.ts';
import { formatValue, type TaskSpec, type Value } from '../task/index.ts';
import {
  type CommandTemplate,
  checkPlaceholder,
  checkPlaceholders,
  type Filler,
  filler,
  isFilled,
  mistake,
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

/** The values of a phase, with their placeholders. */
interface CompiledValues {
  keys: readonly string[];
  /** Values that are no axis. */
  fixed: ReadonlyMap<string, Filler>;
  /** Choices of each axis, by index. */
  steps: readonly ReturnType<typeof stepThrough>[];
  /** Keys, those first to which others refer. */
  order: readonly string[];
  /** Where mistakes in a value are. */
  locations: ReadonlyMap<string, SourceLocation>;
}

/** @throws for placeholders that name nothing or refer to each other */
function compileValues(source: PhaseSource): CompiledValues {
  const { name, axes, command } = source;
  const keys = Array.from(new Set([...source.fixed.keys(), ...axes.map(({ key }) => key)]));
  const known = Array.from(new Set([...keys, OUTPUT, PHASE]));
  const references = new Map<string, Set<string>>(known.map((key) => [key, new Set()]));
  const locations = new Map<string, SourceLocation>();
  const compile = (key: string, { value, location }: Given): Filler => {
    const refuse = (why: string) => mistake(location, `${showValue(key)}: ${why}`);
    const compiled = filler(value, refuse);
    for (const each of compiled.names) {
      checkPlaceholder(each, known, refuse);
      references.get(key)?.add(each);
    }
    if (compiled.names.length > 0 || !locations.has(key)) locations.set(key, location);
    return compiled;
  };

  const fixed = new Map<string, Filler>();
  const axisKeys = new Set(axes.map(({ key }) => key));
  for (const [key, given] of source.fixed) if (!axisKeys.has(key)) fixed.set(key, compile(key, given));
  const steps = axes.map(({ key, segments }) =>
    stepThrough(segments.map((each) => ('step' in each ? each : compile(key, each)))),
  );
  if (!keys.includes(OUTPUT)) {
    fixed.set(OUTPUT, compile(OUTPUT, { value: DEFAULT_OUTPUT, location: source.location }));
  }
  const order = dependencyOrder(references, (circle) =>
    mistake(
      locations.get(circle[0] as string) ?? source.location,
      circle.length === 1
        ? `${showValue(circle[0])} refers to itself`
        : `${listWords(circle.map(showValue))} refer to each other`,
    ),
  );
  if (command !== null) checkPlaceholders(command, known, `the command, in phase ${showValue(name)}`);
  return { keys, fixed, steps, order, locations };
}

/**
 * Each task is made once for a test: what is wrong with one shall not come up when half of them are done.
 * @throws for placeholders that name nothing or refer to each other
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
  const { make, steps } = taskMakerOf(source);
  const counts = axes.map(countOf);
  const makeAt = (indices: readonly number[]) =>
    make((axis) => (steps[axis] as (typeof steps)[0])(indices[axis] as number));
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

/** Makes tasks from a choice for each axis. @throws for placeholders that name nothing or refer to each other */
export function taskMakerOf(source: PhaseSource) {
  const { name, axes, command } = source;
  const { keys, fixed, steps, order, locations } = compileValues(source);
  const directories = new Map<string, string>();
  const directory = (value: Value): string => {
    const path = formatValue(value);
    let normal = directories.get(path);
    if (normal === undefined) {
      normal = outputDirectory(path, (why) => mistake(locations.get(OUTPUT) ?? source.location, why));
      if (directories.size > 10_000) directories.clear();
      directories.set(path, normal);
    }
    return normal;
  };
  const shape: Record<string, Value> = Object.fromEntries(
    keys.filter((key) => key !== OUTPUT).map((key) => [key, null]),
  );
  const always: [string, Fill][] = [];
  let onlyDirectory = '';
  for (const [key, each] of fixed) {
    if (!isFilled(each)) always.push([key, each.fill]);
    else if (key === OUTPUT) onlyDirectory = directory(each.value);
    else shape[key] = each.value;
  }

  const make = (choose: (axis: number) => Choice): TaskSpec => {
    const parameters = { ...shape };
    let place = onlyDirectory;
    const set = (key: string, value: Value) => {
      if (key === OUTPUT) place = directory(value);
      else parameters[key] = value;
    };
    const fills = new Map(always);
    for (let i = 0; i < axes.length; i++) {
      const { key } = axes[i] as Axis;
      const choice = choose(i);
      if ('value' in choice) set(key, choice.value);
      else fills.set(key, choice.fill);
    }
    const textOf = (each: string): string => {
      if (each === OUTPUT) return place;
      return each === PHASE && !(PHASE in shape) ? name : formatValue(parameters[each] as Value);
    };
    if (fills.size > 0) {
      for (const key of order) {
        const fill = fills.get(key);
        if (fill) set(key, fill(textOf));
      }
    }
    return {
      phase: name,
      outputDirectory: place,
      parameters,
      command: command?.fill(textOf) ?? NO_COMMAND,
      ...(source.retries !== undefined && { retries: source.retries }),
    };
  };
  return { make, steps };
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

/** How to make a value. */
type Fill = (textOf: (name: string) => string) => Value;

/** A value that is ready, or how to make it. */
type Choice = { readonly value: Value } | { readonly fill: Fill };

function countOf({ segments }: Axis): number {
  return segments.reduce((sum, each) => sum + ('step' in each ? each.count : 1), 0);
}

/** The value of an axis by its number. */
function stepThrough(segments: readonly (Filler | Range)[]): (at: number) => Choice {
  const choices = segments.map((each) =>
    'step' in each ? each : isFilled(each) ? { value: each.value } : { fill: each.fill },
  );
  if (!choices.some((each) => 'step' in each)) return (at) => choices[at] as Choice;
  return (at) => {
    let rest = at;
    for (const each of choices) {
      if (!('step' in each)) {
        if (rest-- === 0) return each;
      } else {
        if (rest < each.count) return { value: each.first + rest * each.step };
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

/** Parameters after those that they refer to. @throws what `refuse` makes of those that have no such order */
function dependencyOrder(
  references: ReadonlyMap<string, ReadonlySet<string>>,
  refuse: (circle: string[]) => Error,
): string[] {
  const order: string[] = [];
  const done = new Set<string>();
  const path: string[] = [];
  const visit = (key: string): void => {
    if (done.has(key)) return;
    if (path.includes(key)) throw refuse(path.slice(path.indexOf(key)));
    path.push(key);
    for (const each of references.get(key) ?? []) visit(each);
    path.pop();
    done.add(key);
    order.push(key);
  };
  for (const key of references.keys()) visit(key);
  return order;
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
