// The parameters of a sweep and how their values are distributed, and the tasks that they make.

import { showValue } from '../../platform/index.ts';
import { formatValue, type TaskCommand, type TaskSpec, type Value, type Values } from '../task/index.ts';
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
import { defaultOutputOf, outputDirectory } from './names.ts';

export type { Distribution, Rounding } from './distribution.ts';

export interface SearchParameter {
  /** Unique. */
  readonly name: string;
  readonly distribution: Distribution;
}

/** Which trial comes next. `tpe`, `gp` and `cmaes` are samplers of Optuna. */
export type SearchMethod = 'random' | 'tpe' | 'gp' | 'cmaes';

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

/** A part of a sweep. Its tasks are a grid over its parameters, or found by a search. */
export interface Space {
  /** The name of its phase. */
  readonly name: string;
  readonly location: SourceLocation;
  readonly method: SearchMethod | 'grid';
  /** The first varies slowest in a grid. */
  readonly parameters: readonly SearchParameter[];
  /** null: tasks aren't compared. */
  readonly metric: Metric | null;
  /** null: no end. */
  readonly trials: number | null;
  readonly earlyStopping: EarlyStopping | null;
  readonly hasCommand: boolean;
  /** Lines of a file of commands that are there already: they make no tasks. Absent: none. */
  readonly repeatedLines?: number;
  /** Makes a task from a value per parameter, by their names. */
  taskOf(values: ReadonlyMap<string, Value>): TaskSpec;
}

/** A value, and where it was written. */
export interface Given {
  readonly value: Value;
  readonly location: SourceLocation;
}

/** A part of a sweep as it was written. */
interface SpaceSource
  extends Pick<Space, 'name' | 'location' | 'parameters'>,
    Partial<Pick<Space, 'method' | 'metric' | 'trials' | 'earlyStopping'>> {
  /** The parameters with one value, in their order. */
  readonly fixed?: ReadonlyMap<string, Value>;
  /** The output directory. Absent: the parameter `output_dir`, or the default. */
  readonly directory?: Given;
  /** null: none. @param place the task's output directory */
  readonly command: CommandTemplate | ((values: Values, place: string) => TaskCommand) | null;
}

const MAX_PARAMETERS = 1000;
const OUTPUT = 'output_dir';
/** Placeholders have the name of the phase under this one. */
const PHASE = 'phase';
/** For a plan without a command. */
const NO_COMMAND = { words: [] };

/** @throws for placeholders that name nothing, and parameters that are too many or have the same name */
export function makeSpace(source: SpaceSource): Space {
  const { name, location, parameters, fixed = new Map(), command, directory } = source;
  const { method = 'grid', metric = null, trials = null, earlyStopping = null } = source;
  const varied = parameters.filter((each) => directory !== undefined || each.name !== OUTPUT);
  const empty: Record<string, Value> = Object.fromEntries(fixed);
  for (const { name: key } of varied) {
    if (Object.hasOwn(empty, key) && !fixed.has(key))
      throw mistake(location, `parameter ${showValue(key)} is given twice; remove one`);
    empty[key] = null;
  }
  const known = Object.keys(empty);
  if (known.length > MAX_PARAMETERS)
    throw mistake(location, `${showValue(name)} has more than ${MAX_PARAMETERS} parameters`);
  const directoryOf = (text: string, where: SourceLocation) => {
    const refuse = (why: string) => mistake(where, `${showValue(OUTPUT)}: ${why}`);
    const template = parseTemplate(text, refuse);
    for (const each of template.names) checkPlaceholder(each, [...known, PHASE], refuse);
    return (textOf: (each: string) => string) =>
      outputDirectory(fillTemplate(template, textOf), (why) => mistake(where, why));
  };
  const ofAll =
    directory === undefined
      ? directoryOf(defaultOutputOf('{phase}'), location)
      : directoryOf(formatValue(directory.value), directory.location);
  const ofText = new Map<string, ReturnType<typeof directoryOf>>();
  const axis =
    varied.length < parameters.length ? parameters.find((each) => each.name === OUTPUT) : undefined;
  if (axis?.distribution.kind === 'choice') {
    for (const text of axis.distribution.values.map(formatValue))
      ofText.set(text, directoryOf(text, location));
  }
  if (command !== null && 'fill' in command)
    checkPlaceholders(command, [...known, OUTPUT, PHASE], `the command, in phase ${showValue(name)}`);
  const taskOf = (chosen: ReadonlyMap<string, Value>): TaskSpec => {
    const values = { ...empty };
    for (const { name: key } of varied) {
      const value = chosen.get(key);
      if (value === undefined) delete values[key];
      else values[key] = value;
    }
    let place = '';
    const textOf = (each: string) => {
      const value = values[each];
      return value !== undefined ? formatValue(value) : each === PHASE ? name : place;
    };
    const text = axis && formatValue(chosen.get(OUTPUT) as Value);
    place = (text === undefined ? ofAll : (ofText.get(text) ?? directoryOf(text, location)))(textOf);
    return {
      phase: name,
      outputDirectory: place,
      parameters: values,
      command:
        command === null ? NO_COMMAND : 'fill' in command ? command.fill(textOf) : command(values, place),
    };
  };
  return {
    name,
    location,
    method,
    parameters,
    metric,
    trials,
    earlyStopping,
    hasCommand: command !== null,
    taskOf,
  };
}
