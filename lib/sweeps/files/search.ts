// The search of a sweep: what options and files make of it, and trials that need no results.

import { createHash } from 'node:crypto';
import { listWords, showValue, usageError } from '../../platform/index.ts';
import { type TaskSpec, taskId, type Value } from '../task/index.ts';
import { mistake } from './command.ts';
import { countOf, isFixed, valueAt } from './distribution.ts';
import type { Phase } from './phase.ts';
import {
  DEFAULT_ETA,
  type EarlyStopping,
  type Metric,
  MIN_ETA,
  rungsFrom,
  type SearchMethod,
  type Space,
} from './space.ts';

/** Changes of a search. Absent: as the file says. */
export interface SearchOptions {
  method?: SearchMethod;
  trials?: number;
  metric?: string;
  goal?: Metric['goal'];
  stopEarly?: EarlyStopping;
  seed?: number;
}

/** Their names on the command line; a goal is its own. */
const OPTIONS: Readonly<Record<Exclude<keyof SearchOptions, 'goal'>, string>> = {
  method: '--method',
  trials: '--trials',
  metric: '--metric',
  stopEarly: '--stop-early',
  seed: '--search-seed',
};

/** A search, complete. */
export interface SeededSearch extends Space {
  readonly method: SearchMethod;
  readonly trials: number;
  /** The same seed gives the same trials. */
  readonly seed: number;
}

/** How the trials of a search, or the tasks of a grid, are compared. */
export type Comparison = Pick<SeededSearch, 'name' | 'trials' | 'metric' | 'earlyStopping'>;

/** More trials aren't counted before they run. */
const MAX_COUNTED = 100_000;
const DEFAULT_TRIALS = 100;
const DEFAULT_SEED = 0;

/** The search of a sweep, with the changes that options make. null: there is none. */
export function searchOf(parts: readonly Space[], options: SearchOptions = {}): SeededSearch | null {
  const searched = parts.find((part) => part.method !== 'grid') ?? parts[0];
  const method = options.method ?? searched?.method ?? 'grid';
  const [first = 'method'] = Object.keys(options) as (keyof SearchOptions)[];
  const option = optionOf(first, options);
  if (searched === undefined || method === 'grid') {
    const odd = searchOption(options);
    if (odd === undefined) return null;
    throw mistake(
      optionOf(odd, options),
      'there is no search; add --method random, or another method, and a grid or a sweep file',
    );
  }
  if (parts.length > 1) {
    const others = parts.filter((part) => part !== searched).map(({ name }) => showValue(name));
    throw mistake(
      options.method === undefined ? searched.location : option,
      `a search is a sweep of its own; start it without ${listWords(others)}`,
    );
  }
  const compared = comparedBy(searched, options);
  if (compared.metric === null && !isDrawn({ method })) {
    throw mistake(option, `the method ${method} needs a metric: add --metric NAME, a value of the results`);
  }
  return {
    ...searched,
    ...compared,
    method,
    trials: options.trials ?? searched.trials ?? DEFAULT_TRIALS,
    seed: options.seed ?? DEFAULT_SEED,
  };
}

/** How the tasks of a grid are compared. null: they aren't. @throws for several phases */
export function comparisonOf(
  parts: readonly Space[],
  phases: readonly Phase[],
  options: SearchOptions = {},
): Comparison | null {
  const compared = comparedBy(parts[0], options);
  const [phase] = phases;
  if (phase === undefined || compared.metric === null) return null;
  if (phases.length === 1) return { ...compared, name: phase.name, trials: phase.size };
  const given = (Object.keys(options) as (keyof SearchOptions)[]).find((key) => options[key] !== undefined);
  if (given === undefined) return null;
  throw mistake(
    optionOf(given, options),
    `tasks of one phase are compared, and there are ${phases.length}; start one of them alone, or leave it out`,
  );
}

/** The metric of a file, and what belongs to it, with the changes that options make. */
function comparedBy(
  part: Space | undefined,
  options: SearchOptions,
): Pick<Comparison, 'metric' | 'earlyStopping'> {
  const metric =
    options.metric === undefined ? (part?.metric ?? null) : { name: options.metric, target: null };
  const goal = options.goal ?? part?.metric?.goal ?? 'minimize';
  const earlyStopping = options.stopEarly ?? part?.earlyStopping ?? null;
  const odd = (['goal', 'stopEarly'] as const).find((key) => options[key] !== undefined);
  if (metric === null && (odd !== undefined || earlyStopping !== null)) {
    const location =
      odd === undefined && part !== undefined ? part.location : optionOf(odd ?? 'metric', options);
    throw mistake(
      location,
      'which value tells good trials from bad ones? Add --metric NAME, a value of the results',
    );
  }
  return { metric: metric && { ...metric, goal }, earlyStopping };
}

/** The first option that asks for a search. */
function searchOption(options: SearchOptions = {}): 'method' | 'trials' | 'seed' | undefined {
  return (['method', 'trials', 'seed'] as const).find((key) => options[key] !== undefined);
}

function optionOf(key: keyof SearchOptions, { goal }: SearchOptions): { option: string } {
  return { option: key === 'goal' ? `--${goal}` : OPTIONS[key] };
}

/** The phase of a search, with the tasks that are known ahead. */
export function searchPhase(search: SeededSearch): Phase {
  const { name, trials } = search;
  const tasks = () => (isKnownAhead(search) ? drawTrials(search) : []);
  const isCounted = isKnownAhead(search) && trials <= MAX_COUNTED;
  const size = isCounted ? Array.from(tasks()).length : trials;
  return { name, size, factors: factorsOf(search), repeatedLines: 0, tasks };
}

/** Whether trials are drawn at random, without a sampler of Optuna. */
export function isDrawn({ method }: Pick<Space, 'method'>): boolean {
  return method === 'random';
}

/** Whether the trials of a search are known before any has ended. */
export function isKnownAhead(search: Pick<Space, 'method' | 'metric'>): boolean {
  return isDrawn(search) && (search.metric?.target ?? null) === null;
}

/** Draws per trial before the space counts as exhausted: equal parameters are an equal task. */
const MAX_DRAWS = 100;

/** The trials of a search that need no results: the same ones for the same seed, and fewer where the space has no more. */
export function* drawTrials(search: SeededSearch): Generator<TaskSpec> {
  const { trials, seed, parameters } = search;
  const all = parameters.reduce((product, { distribution }) => product * countOf(distribution), 1);
  const seen = new Set<string>();
  for (let number = 0; seen.size < Math.min(trials, all) && number < trials * MAX_DRAWS; number++) {
    const task = search.taskOf(drawTrial(search, number, seed));
    const id = taskId(task.parameters);
    if (seen.has(id)) continue;
    seen.add(id);
    yield task;
  }
}

/** The parameters that vary, as a phase names them. */
function factorsOf({ parameters }: Pick<Space, 'parameters'>): Phase['factors'] {
  return parameters
    .filter((each) => !isFixed(each.distribution))
    .map(({ name, distribution }) => ({
      name,
      count: Number.isFinite(countOf(distribution)) ? countOf(distribution) : null,
    }));
}

/** The values of a trial, by its number. */
function drawTrial(
  { parameters }: Pick<Space, 'parameters'>,
  number: number,
  seed: number,
): Map<string, Value> {
  return new Map(
    parameters.map(({ name, distribution }) => [name, valueAt(distribution, uniform(seed, number, name))]),
  );
}

/** A random number between 0 and 1, neither included. */
function uniform(seed: number, number: number, name: string): number {
  const hash = createHash('sha256')
    .update(JSON.stringify([seed, number, name]))
    .digest();
  return (hash.readUIntBE(0, 6) + 0.5) / 2 ** 48;
}

/** The rule of `--stop-early`. @throws ERR_INVALID_ARGUMENT */
export function stopRule(text: string): EarlyStopping {
  const [, first = '', given] = /^hyperband:(\d{1,9})(?::(\d+(?:\.\d+)?))?$/.exec(text) ?? [];
  const [step, eta] = [Number(first), Number(given ?? DEFAULT_ETA)];
  if (step < 1)
    throw usageError(`--stop-early: ${showValue(text)} is no rule such as hyperband:3 or hyperband:3:2`);
  if (eta < MIN_ETA)
    throw usageError(
      `--stop-early: ETA must be at least ${MIN_ETA}, as in hyperband:${first}:${DEFAULT_ETA}`,
    );
  return { rungs: rungsFrom(step, eta), eta, strict: true };
}
