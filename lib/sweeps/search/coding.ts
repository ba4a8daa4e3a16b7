// Values of trials as a sampler has them: numbers between two ends, and numbers of choices.

import {
  choiceOf,
  type Distribution,
  decimal,
  isFixed,
  type SearchParameter,
  type SeededSearch,
  valueAt,
} from '../files/index.ts';
import { Literal, taskId, type Value, type Values } from '../task/index.ts';

/** A parameter as the helper process has it. */
export type CodedParameter = {
  readonly name: string;
} & (
  | { readonly kind: 'choice'; readonly count: number }
  | { readonly kind: 'int' | 'float'; readonly low: number; readonly high: number; readonly log: boolean }
);

type Range = Extract<CodedParameter, { kind: 'int' | 'float' }>;

/** The parameters that vary. */
export function codeSpace(parameters: readonly SearchParameter[]): CodedParameter[] {
  return parameters.filter(varies).map(({ name, distribution }) => {
    const range = rangeOf(distribution);
    return {
      name,
      ...(range ?? { kind: 'choice' as const, count: choicesOf(distribution).length }),
    };
  });
}

/** The values of a trial from what a sampler has chosen; those that don't vary are among them. */
export function decodeTrial(
  parameters: readonly SearchParameter[],
  coded: Readonly<Record<string, number>>,
): Map<string, Value> {
  const values = new Map<string, Value>();
  for (const { name, distribution } of parameters) {
    if (!varies({ distribution })) values.set(name, valueAt(distribution, 0.5));
    else if (Object.hasOwn(coded, name)) values.set(name, decode(distribution, coded[name] as number));
  }
  return values;
}

/** The choices of a sampler that lead to the values of a trial. null: they are none of this space. */
export function codeTrial(
  parameters: readonly SearchParameter[],
  values: Readonly<Record<string, Value>>,
): Record<string, number> | null {
  const coded: Record<string, number> = {};
  for (const { name, distribution } of parameters) {
    if (!Object.hasOwn(values, name) || !varies({ distribution })) continue;
    const code = encode(distribution, values[name] as Value);
    if (code === null) return null;
    coded[name] = code;
  }
  return coded;
}

/** Whether a search can have a task as a trial: other parameters, and other values of them, aren't in its space. */
export function isInSpace(
  { parameters, taskOf }: Pick<SeededSearch, 'parameters' | 'taskOf'>,
  task: { id: string; parameters: Values },
): boolean {
  if (codeTrial(parameters, task.parameters) === null) return false;
  const values = new Map<string, Value>();
  for (const { name, distribution } of parameters) {
    if (!varies({ distribution })) values.set(name, valueAt(distribution, 0.5));
    else if (Object.hasOwn(task.parameters, name)) values.set(name, task.parameters[name] as Value);
    else return false;
  }
  return taskId(taskOf(values).parameters) === task.id;
}

function varies({ distribution }: Pick<SearchParameter, 'distribution'>): boolean {
  return !isFixed(distribution);
}

function choicesOf(distribution: Distribution): readonly Value[] {
  return distribution.kind === 'choice' ? distribution.values : [];
}

/** null: a choice. */
function rangeOf(distribution: Distribution): Omit<Range, 'name'> | null {
  if (distribution.kind === 'choice') return null;
  if (distribution.kind === 'range') {
    const { low } = scaleOf(distribution);
    return { kind: 'int', low, high: low + distribution.count - 1, log: false };
  }
  const { min, max, log, rounding } = distribution;
  if (rounding === null) return { kind: 'float', low: min, high: max, log };
  const step = rounding === 'integer' ? 1 : rounding;
  const low = Math.round(min / step);
  return { kind: 'int', low, high: Math.round(max / step), log: log && low > 0 };
}

function decode(distribution: Distribution, code: number): Value {
  if (distribution.kind === 'choice') return distribution.values[code] as Value;
  if (distribution.kind === 'range') {
    const { least, unit, low } = scaleOf(distribution);
    return decimal(least + (code - low) * unit);
  }
  const { rounding } = distribution;
  return typeof rounding === 'number' ? decimal(code * rounding) : code;
}

/** null: no value of the distribution. */
function encode(distribution: Distribution, value: Value): number | null {
  if (distribution.kind === 'choice') {
    const choice = choiceOf(distribution.values, value);
    return choice < 0 ? null : choice;
  }
  const number = value instanceof Literal ? value.data : value;
  if (typeof number !== 'number') return null;
  const { kind, low, high } = rangeOf(distribution) as Range;
  const code = codeOf(distribution, number);
  if (code < low || code > high || (kind === 'int' && !Number.isInteger(code))) return null;
  return decode(distribution, code) === number ? code : null;
}

function codeOf(distribution: Exclude<Distribution, { kind: 'choice' }>, number: number): number {
  if (distribution.kind === 'uniform') return unround(distribution.rounding, number);
  const { least, unit, low } = scaleOf(distribution);
  return low + Math.round((number - least) / unit);
}

/** A sampler counts the values of a range by steps, from `low`: multiples of the step are coded as those of a file are. */
function scaleOf({ first, step, count }: Extract<Distribution, { kind: 'range' }>) {
  const unit = Math.abs(step);
  const least = Math.min(first, first + (count - 1) * step);
  return { least, unit, low: least % unit === 0 ? least / unit : 0 };
}

function unround(rounding: Extract<Distribution, { kind: 'uniform' }>['rounding'], number: number): number {
  return typeof rounding === 'number' ? Math.round(number / rounding) : number;
}
