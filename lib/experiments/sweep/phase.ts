import { listWords, showValue } from '../../platform/index.ts';
import { show, type TaskSpec, type Value } from '../task/index.ts';
import { type Axis, countOf, type Fill, type Given, product, stepThrough } from './axes.ts';
import { type CommandTemplate, checkPlaceholder } from './command.ts';
import { mistake, type Origin } from './origin.ts';
import { outputDirectory } from './output-directory.ts';
import { type Filler, filler, isFilled } from './placeholders.ts';
import { inOrder } from './references.ts';

/** A phase as it was written. */
export interface PhaseSource {
  readonly name: string;
  readonly origin: Origin;
  /** The parameters with one value, in their order. `output_dir` may be among them. */
  readonly fixed: ReadonlyMap<string, Given>;
  /** The first varies slowest. */
  readonly axes: readonly Axis[];
  readonly command: CommandTemplate | null;
  /** Its tasks have the seed that they have if the file says none. */
  readonly hasDefaultSeed?: boolean;
}

/** A part of a sweep. Nothing of the size of the product is kept. */
export interface Phase {
  readonly name: string;
  readonly size: number;
  /** What the size is the product of. */
  readonly factors: readonly { readonly name: string; readonly count: number }[];
  tasks(): Iterable<TaskSpec>;
}

const OUTPUT = 'output_dir';
const PHASE = 'phase';
const DEFAULT_OUTPUT = 'results_{phase}';
/** Of larger phases only the first task is tried. */
const MOST_TRIED = 100_000;
/** For a plan without a command. */
const NO_COMMAND = { words: [] };

/**
 * Each task is made once for a test: what is wrong with one shall not come up when half of them are done.
 * @throws for placeholders that name nothing or refer to each other in a circle
 */
export function compilePhase(source: PhaseSource): Phase {
  const { name, axes, command } = source;
  const keys = Array.from(new Set([...source.fixed.keys(), ...axes.map(({ key }) => key)]));
  const known = Array.from(new Set([...keys, OUTPUT, PHASE]));
  const references = new Map<string, Set<string>>(known.map((key) => [key, new Set()]));
  const origins = new Map<string, Origin>();
  const compile = (key: string, { value, origin }: Given): Filler => {
    const refuse = (why: string) => mistake(origin, `${showValue(key)}: ${why}`);
    const compiled = filler(value, refuse);
    for (const each of compiled.names) {
      checkPlaceholder(each, known, refuse);
      references.get(key)?.add(each);
    }
    if (compiled.names.length > 0 || !origins.has(key)) origins.set(key, origin);
    return compiled;
  };

  const fixed = new Map<string, Filler>();
  const axisKeys = new Set(axes.map(({ key }) => key));
  for (const [key, given] of source.fixed) if (!axisKeys.has(key)) fixed.set(key, compile(key, given));
  const steps = axes.map(({ key, segments }) =>
    stepThrough(segments.map((each) => ('step' in each ? each : compile(key, each)))),
  );
  if (!keys.includes(OUTPUT)) {
    fixed.set(OUTPUT, compile(OUTPUT, { value: DEFAULT_OUTPUT, origin: source.origin }));
  }
  const order = inOrder(references, (circle) =>
    mistake(
      origins.get(circle[0] as string) ?? source.origin,
      circle.length === 1
        ? `${showValue(circle[0])} refers to itself`
        : `${listWords(circle.map(showValue))} refer to each other in a circle`,
    ),
  );
  for (const each of command?.names ?? []) {
    checkPlaceholder(each, known, (why) =>
      mistake((command as CommandTemplate).origin, `the command, in phase ${showValue(name)}: ${why}`),
    );
  }

  const counts = axes.map(countOf);
  const directories = new Map<string, string>();
  const directory = (value: Value): string => {
    const path = show(value);
    let normal = directories.get(path);
    if (normal === undefined) {
      normal = outputDirectory(path, (why) => mistake(origins.get(OUTPUT) ?? source.origin, why));
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

  const make = (indices: readonly number[]): TaskSpec => {
    const parameters = { ...shape };
    let place = onlyDirectory;
    const set = (key: string, value: Value) => {
      if (key === OUTPUT) place = directory(value);
      else parameters[key] = value;
    };
    const fills = new Map(always);
    for (let i = 0; i < axes.length; i++) {
      const { key } = axes[i] as Axis;
      const choice = (steps[i] as (typeof steps)[0])(indices[i] as number);
      if ('value' in choice) set(key, choice.value);
      else fills.set(key, choice.fill);
    }
    const textOf = (each: string): string => {
      if (each === OUTPUT) return place;
      return each === PHASE && !(PHASE in shape) ? name : show(parameters[each] as Value);
    };
    if (fills.size > 0) {
      for (const key of order) {
        const fill = fills.get(key);
        if (fill) set(key, fill(textOf));
      }
    }
    const spec = {
      phase: name,
      outputDirectory: place,
      parameters,
      command: command?.fill(textOf) ?? NO_COMMAND,
    };
    return source.hasDefaultSeed ? { ...spec, hasDefaultSeed: true } : spec;
  };

  const size = counts.reduce((all, count) => all * count, 1);
  if (size > MOST_TRIED) make(axes.map(() => 0));
  else for (const indices of product(counts)) make(indices);
  return {
    name,
    size,
    factors: axes.map(({ key }, i) => ({ name: key, count: counts[i] as number })),
    *tasks() {
      for (const indices of product(counts)) yield make(indices);
    },
  };
}
