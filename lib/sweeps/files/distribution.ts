// How the values of a parameter are distributed.

import { canonical, type Value } from '../task/index.ts';

/** The values that a parameter can have, and how likely they are. */
export type Distribution =
  /** A single value is a fixed one. Without weights, all are equally likely; weights needn't have the sum 1. */
  | {
      readonly kind: 'choice';
      readonly values: readonly Value[];
      readonly weights: readonly number[] | null;
    }
  /** Numbers, `step` apart, all equally likely. `step` may be negative. */
  | { readonly kind: 'range'; readonly first: number; readonly step: number; readonly count: number }
  /** Between both ends, which are included. `log`: the logarithm of the value is uniform; min is positive then. */
  | {
      readonly kind: 'uniform';
      readonly min: number;
      readonly max: number;
      readonly log: boolean;
      readonly rounding: Rounding;
    }
  /** `log`: mean and deviation are those of the value's logarithm. */
  | {
      readonly kind: 'normal';
      readonly mean: number;
      readonly deviation: number;
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
  if (distribution.kind === 'choice') {
    const { values, weights } = distribution;
    return new Set(values.filter((_, i) => weights?.[i] !== 0).map(canonical)).size;
  }
  if (distribution.kind === 'range') return distribution.count;
  if (distribution.kind === 'normal') return distribution.deviation === 0 ? 1 : Number.POSITIVE_INFINITY;
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
      const { values, weights } = distribution;
      if (weights === null)
        return values[Math.min(Math.floor(share * values.length), values.length - 1)] as Value;
      let left = share * weights.reduce((sum, each) => sum + each, 0);
      for (const [at, weight] of weights.entries()) {
        left -= weight;
        if (left < 0) return values[at] as Value;
      }
      return values[weights.findLastIndex((weight) => weight > 0)] as Value;
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
    case 'normal': {
      const { mean, deviation, log, rounding } = distribution;
      const value = mean + deviation * normalQuantile(share);
      return round(log ? Math.exp(value) : value, rounding);
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

/** The quantile of the standard normal distribution (Acklam; relative error below 1.2e-9). */
function normalQuantile(share: number): number {
  const a = [
    -39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716,
    2.506628277459239,
  ];
  const b = [
    -54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1,
  ];
  const c = [
    -0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968,
    2.938163982698783,
  ];
  const d = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1];
  const polynomial = (coefficients: readonly number[], x: number) =>
    coefficients.reduce((sum, each) => sum * x + each, 0);
  const tail = (p: number) => {
    const x = Math.sqrt(-2 * Math.log(p));
    return polynomial(c, x) / polynomial(d, x);
  };
  const EDGE = 0.02425;
  if (share < EDGE) return tail(share);
  if (share > 1 - EDGE) return -tail(1 - share);
  const x = share - 0.5;
  return (polynomial(a, x * x) * x) / polynomial(b, x * x);
}
