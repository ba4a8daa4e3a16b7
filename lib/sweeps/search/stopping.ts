// Which trials are stopped early: pure functions of what has been reported.

import type { SearchRecord } from '../queue/index.ts';

export type StopRule = NonNullable<SearchRecord['stopping']>;
type Goal = NonNullable<SearchRecord['metric']>['goal'];

/** The median of fewer values says little. */
const MIN_OTHERS = 4;

/** The steps at which a trial is compared with others, up to this one, in order. */
export function rungsUntil(rule: StopRule, step: number): number[] {
  if (rule.kind === 'hyperband') return rule.rungs.filter((rung) => rung <= step);
  const count = Math.floor(step / rule.first);
  // The last ones count if there are many.
  const from = Math.max(1, count - MAX_RUNGS + 1);
  return Array.from({ length: count - from + 1 }, (_, i) => (from + i) * rule.first);
}

const MAX_RUNGS = 100;

/**
 * Whether a trial is stopped at a rung.
 * @param value of this trial there: see {@link valueAtRung} @param others values of other trials that have reached it
 */
export function isStopped(rule: StopRule, goal: Goal, value: number, others: readonly number[]): boolean {
  const isBetter = (other: number, than: number) => (goal === 'minimize' ? other < than : other > than);
  if (rule.kind === 'median') {
    if (others.length < MIN_OTHERS) return false;
    const sorted = others.toSorted((a, b) => a - b);
    const [low, high] = [sorted[(sorted.length - 1) >> 1] as number, sorted[sorted.length >> 1] as number];
    return isBetter((low + high) / 2, value);
  }
  // W&B stops what is worse than the quantile 1/eta; successive halving keeps the best n/eta, rounded down, and at least one.
  const share = (others.length + 1) / rule.eta;
  const kept = Math.max(1, rule.strict ? Math.floor(share) : Math.ceil(share));
  return others.filter((other) => isBetter(other, value)).length >= kept;
}

/** The value that counts at a rung: the reported one, or the best one until then. */
export function valueAtRung(rule: StopRule, goal: Goal, reported: number, best: number): number {
  if (rule.kind === 'hyperband' && rule.strict) return reported;
  return goal === 'minimize' ? Math.min(reported, best) : Math.max(reported, best);
}
