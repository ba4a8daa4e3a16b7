// How the values of a parameter are distributed.

import { canonical, type Value } from '../task/index.ts';

/** The values that a parameter can have, and how likely they are. */
export type Distribution =
  /** A single value is a fixed one. All are equally likely. */
  | { readonly kind: 'choice'; readonly values: readonly Value[] }
  /** Numbers, `step` apart, all equally likely. `step` may be negative. */
  | { readonly kind: 'range'; readonly first: number; readonly step: number; readonly count: number }
  /** Between both ends, which are included. `log`: the logarithm of the value is uniform; min is positive then. */
  | {
      readonly kind: 'uniform';
      readonly min: number;
      readonly max: number;
      readonly log: boolean;
      readonly rounding: Rounding;
    };

/** `integer`: all whole numbers are equally likely; the ends are whole. A number: rounded to the nearest multiple. null: as it is. */
export type Rounding = 'integer' | number | null;

/** Whether there is a single value. */
export function isFixed(distribution: Distribution): boolean {
  return countOf(distribution) === 1;
}

/** How many values there are; infinite: they can't be counted. */
export function countOf(distribution: Distribution): number {
  if (distribution.kind === 'choice') return new Set(distribution.values.map(canonical)).size;
  if (distribution.kind === 'range') return distribution.count;
  const { min, max, rounding } = distribution;
  if (min === max) return 1;
  if (rounding === null) return Number.POSITIVE_INFINITY;
  const step = rounding === 'integer' ? 1 : rounding;
  return Math.round(max / step) - Math.round(min / step) + 1;
}

/** The number of a value among choices; -1: it isn't one. */
export function choiceOf(values: readonly Value[], chosen: Value): number {
  const wanted = canonical(chosen);
  return values.findIndex((value) => canonical(value) === wanted);
}

/** The value below which a share of the distribution lies; of choices, the one in whose part the share is. */
export function valueAt(distribution: Distribution, share: number): Value {
  switch (distribution.kind) {
    case 'choice': {
      const { values } = distribution;
      return values[Math.min(Math.floor(share * values.length), values.length - 1)] as Value;
    }
    case 'range': {
      const { first, step, count } = distribution;
      return decimal(first + Math.min(Math.floor(share * count), count - 1) * step);
    }
    case 'uniform': {
      const { log, rounding } = distribution;
      // Each whole number gets an equal part, also both ends.
      const half = rounding === 'integer' ? 0.5 : 0;
      const [min, max] = [distribution.min - half, distribution.max + half];
      const value = log ? min * (max / min) ** share : min + share * (max - min);
      // The nearest multiple may lie beyond an end, as in W&B and for samplers.
      if (typeof rounding === 'number') return round(value, rounding);
      return clamp(round(value, rounding), distribution.min, distribution.max);
    }
  }
}

/** A multiple of a decimal fraction as people write it: 0.3, not 0.30000000000000004. */
export function decimal(number: number): number {
  return Number.isInteger(number) ? number + 0 : Number(number.toPrecision(12)); // -0 is 0
}

function clamp(value: number, min: number, max: number): number {
  return Math.min(Math.max(value, min), max);
}

function round(value: number, rounding: Rounding): number {
  if (rounding === null) return value;
  if (rounding === 'integer') return Math.round(value);
  return decimal(Math.round(value / rounding) * rounding);
}
