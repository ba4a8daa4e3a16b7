// The parameters of a search and how their values are distributed, as files of any tool are read; and grids over them.

import type { GPUOwnerError } from '../../errors.ts';
import { showValue } from '../../platform/index.ts';
import { formatValue, type TaskCommand, type TaskSpec, type Value, type Values } from '../task/index.ts';
import { type CommandTemplate, checkPlaceholders, mistake, type SourceLocation } from './command.ts';
import { type Distribution, decimal } from './distribution.ts';
import { MAX_PARAMETERS, outputDirectory, PHASE, type Phase } from './phase.ts';

export type { Distribution, Rounding } from './distribution.ts';

export interface SearchParameter {
  /** The keys that lead to it in a nested configuration; a single one where it isn't nested. */
  readonly path: readonly string[];
  /** The keys, joined by dots: the parameter's name in tasks. Unique. */
  readonly name: string;
  readonly distribution: Distribution;
}

/** Which trial comes next. `tpe`, `gp` and `cmaes` are samplers of Optuna. */
export type SearchMethod = 'random' | 'quasirandom' | 'tpe' | 'gp' | 'cmaes';

export interface Metric {
  readonly name: string;
  readonly goal: 'minimize' | 'maximize';
  /** The search ends when a trial has reached it. null: it doesn't. */
  readonly target: number | null;
}

/**
 * Hyperband as W&B's package `sweeps` has it: trials are compared at rungs, numbers of reports in order. `strict`: a trial's value at its
 * last rung counts, and not its best one.
 */
export interface EarlyStopping {
  readonly rungs: readonly number[];
  readonly eta: number;
  readonly strict: boolean;
}

export const DEFAULT_ETA = 3;
/** With less, rungs are without end, and stop nothing. */
export const MIN_ETA = 1.1;
const MAX_RUNG = 1e9;

/** The rungs of hyperband from its first one on. @param eta at least {@link MIN_ETA} */
export function rungsFrom(first: number, eta: number): number[] {
  const rungs = new Set<number>();
  for (let rung = first; rung <= MAX_RUNG; rung *= eta) rungs.add(Math.floor(rung));
  return [...rungs];
}

/** A part of a sweep whose tasks are made one by one, when GPUs are free. */
export interface Search {
  /** The name of its phase. */
  readonly name: string;
  readonly location: SourceLocation;
  readonly method: SearchMethod;
  readonly parameters: readonly SearchParameter[];
  /** null: the method needs none. */
  readonly metric: Metric | null;
  /** null: no end. */
  readonly trials: number | null;
  readonly earlyStopping: EarlyStopping | null;
  /** Makes the task of a trial from a value per parameter, by their names. */
  taskOf(values: ReadonlyMap<string, Value>): TaskSpec;
}

/** The content of a file with a space: its tasks are a grid, or found by a search. */
export interface SpaceSweep extends Omit<Search, 'method' | 'taskOf'> {
  readonly method: SearchMethod | 'grid';
  readonly outputDirectory: string;
  command(values: Values): TaskCommand;
}

/** The fields of a space whose source says nothing of a search. */
export const GRID = { method: 'grid', metric: null, trials: null, earlyStopping: null } as const;

/**
 * The command of a space from a command line with placeholders.
 * @throws if it names a parameter that there isn't
 */
export function spaceCommand(
  template: CommandTemplate,
  parameters: readonly SearchParameter[],
  phase: string,
): SpaceSweep['command'] {
  const names = parameters.map(({ name }) => name);
  checkPlaceholders(template, [...names, PHASE]);
  const hasPhase = names.includes(PHASE);
  return (values) =>
    template.fill((each) => (each === PHASE && !hasPhase ? phase : formatValue(values[each] as Value)));
}

/** @throws for parameters that are too many or have the same name, and an output directory that can't be one */
export function taskMaker(space: SpaceSweep): Search['taskOf'] {
  const { name: phase, parameters, location } = space;
  if (parameters.length > MAX_PARAMETERS)
    throw mistake(location, `it has more than ${MAX_PARAMETERS} parameters`);
  const names = new Set<string>();
  for (const { name } of parameters) {
    if (names.has(name)) throw mistake(location, `parameter ${showValue(name)} is given twice; remove one`);
    names.add(name);
  }
  const directory = outputDirectory(space.outputDirectory, (why) => mistake(location, why));
  return (chosen) => {
    const values: Record<string, Value> = {};
    for (const { name } of parameters) {
      const value = chosen.get(name);
      if (value !== undefined) values[name] = value;
    }
    return { phase, outputDirectory: directory, parameters: values, command: space.command(values) };
  };
}

/** Values as a configuration with nested maps has them. */
export function nest(parameters: readonly Pick<SearchParameter, 'path' | 'name'>[], values: Values): Values {
  const all: Record<string, Value> = {};
  for (const { path, name } of parameters) {
    if (!Object.hasOwn(values, name)) continue;
    let map = all;
    for (const key of path.slice(0, -1)) {
      map[key] ??= {};
      map = map[key] as Record<string, Value>;
    }
    map[path.at(-1) as string] = values[name] as Value;
  }
  return all;
}

/** More values of one parameter are surely no intended grid. */
const MAX_GRID_VALUES = 1_000_000;

/**
 * All combinations, or the first ones of them, the last parameter varying fastest.
 * @throws for a parameter with values that can't be counted
 */
export function gridPhaseOf(space: SpaceSweep): Phase {
  const { parameters, location } = space;
  const taskOf = taskMaker(space);
  const axes = parameters.map((parameter) => ({
    ...parameter,
    values: gridValues(parameter.distribution, (why) =>
      mistake(location, `parameter '${parameter.name}': ${why}`),
    ),
  }));
  const all = axes.reduce((product, { values }) => product * values.length, 1);
  const size = Math.min(all, space.trials ?? all);
  return {
    name: space.name,
    size,
    factors: axes
      .filter(({ values }) => values.length > 1)
      .map(({ name, values }) => ({ name, count: values.length })),
    *tasks() {
      for (let number = 0; number < size; number++) {
        const chosen = new Map<string, Value>();
        let rest = number;
        for (const { name, values } of axes.toReversed()) {
          chosen.set(name, values[rest % values.length] as Value);
          rest = Math.floor(rest / values.length);
        }
        yield taskOf(chosen);
      }
    },
  };
}

function gridValues(distribution: Distribution, refuse: (why: string) => GPUOwnerError): readonly Value[] {
  if (distribution.kind === 'choice') {
    if (distribution.weights !== null) throw refuse('a grid has no probabilities; remove them');
    return distribution.values;
  }
  if (distribution.kind === 'range') {
    const { first, step, count } = distribution;
    return Array.from({ length: count }, (_, i) => decimal(first + i * step));
  }
  const { kind, rounding } = distribution;
  const step = rounding === 'integer' ? 1 : rounding;
  if (kind === 'normal' || distribution.log || step === null) {
    throw refuse(
      'a grid needs values that can be counted: a list, or whole numbers from a minimum to a maximum; to search between others: --method random',
    );
  }
  const { min, max } = distribution;
  // W&B's grids of multiples begin at min, and leave out max.
  const size = rounding === 'integer' ? max - min + 1 : Math.ceil((max - min) / step - 1e-9);
  if (size > MAX_GRID_VALUES) throw refuse(`it has ${size.toLocaleString('en')} values; a grid has fewer`);
  return Array.from({ length: size }, (_, i) => decimal(min + i * step));
}
