import type { TaskSpec, Value } from '../task/index.ts';
import { mistake } from './command.ts';
import { type Distribution, decimal } from './distribution.ts';
import type { Space } from './space.ts';

/** A part of a sweep, its tasks counted. Nothing of the size of the product is kept. */
export interface Phase {
  readonly name: string;
  readonly size: number;
  /** The parameters that vary, and how many values each has; null: too many to count. In a grid, they are the factors of the size. */
  readonly factors: readonly { readonly name: string; readonly count: number | null }[];
  readonly repeatedLines: number;
  tasks(): Iterable<TaskSpec>;
}

/** Larger phases have only their first task tried. */
const MAX_TRIED = 100_000;

/**
 * All combinations, or the first ones of them, the last parameter varying fastest. Each task is made once for a test: what is wrong with
 * one shall not come up when half of them are done.
 * @throws for a parameter with values that can't be counted
 */
export function gridPhase({ name, location, parameters, trials, repeatedLines = 0, taskOf }: Space): Phase {
  const axes = parameters.map((parameter) => ({
    name: parameter.name,
    ...gridValues(parameter.distribution, (why) =>
      mistake(location, `parameter '${parameter.name}': ${why}`),
    ),
  }));
  const all = axes.reduce((product, { count }) => product * count, 1);
  const size = Math.min(all, trials ?? all);
  const fastestFirst = axes.toReversed();
  function* tasks(): Generator<TaskSpec> {
    for (let number = 0; number < size; number++) {
      const chosen = new Map<string, Value>();
      let rest = number;
      for (const axis of fastestFirst) {
        chosen.set(axis.name, axis.at(rest % axis.count));
        rest = Math.floor(rest / axis.count);
      }
      yield taskOf(chosen);
    }
  }
  for (const _ of tasks()) if (size > MAX_TRIED) break;
  const factors = axes
    .filter(({ count }) => count > 1)
    .map((axis) => ({ name: axis.name, count: axis.count }));
  return { name, size, factors, repeatedLines, tasks };
}

interface GridValues {
  readonly count: number;
  at(index: number): Value;
}

function gridValues(distribution: Distribution, refuse: (why: string) => Error): GridValues {
  if (distribution.kind === 'choice') {
    const { values } = distribution;
    return { count: values.length, at: (index) => values[index] as Value };
  }
  const stepped = (first: number, step: number, count: number): GridValues => ({
    count,
    at: (index) => decimal(first + index * step),
  });
  if (distribution.kind === 'range')
    return stepped(distribution.first, distribution.step, distribution.count);
  const { min, max, log, rounding } = distribution;
  if (log || rounding === null) {
    throw refuse(
      'a grid needs values that can be counted: a list, or whole numbers such as 42..44; to search between others: add --method random',
    );
  }
  // W&B's grids of multiples begin at min, and leave out max.
  return rounding === 'integer'
    ? stepped(min, 1, max - min + 1)
    : stepped(min, rounding, Math.ceil((max - min) / rounding - 1e-9));
}
