import type { Value } from '../task/index.ts';
import type { Origin } from './origin.ts';
import { type Filler, isFilled } from './placeholders.ts';

/** A value of a parameter, and where it was written. */
export interface Given {
  readonly value: Value;
  readonly origin: Origin;
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
  readonly origin: Origin;
  readonly segments: readonly (Given | Range)[];
}

/** How to make a value. */
export type Fill = (textOf: (name: string) => string) => Value;

/** A value that is ready, or how to make it. */
export type Choice = { readonly value: Value } | { readonly fill: Fill };

export function countOf({ segments }: Axis): number {
  return segments.reduce((sum, each) => sum + ('step' in each ? each.count : 1), 0);
}

/** The value of an axis by its number. */
export function stepThrough(segments: readonly (Filler | Range)[]): (at: number) => Choice {
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
export function* product(counts: readonly number[]): Generator<readonly number[]> {
  const indices = counts.map(() => 0);
  for (;;) {
    yield indices;
    let i = counts.length - 1;
    while (i >= 0 && indices[i] === (counts[i] as number) - 1) indices[i--] = 0;
    if (i < 0) return;
    indices[i] = (indices[i] as number) + 1;
  }
}
