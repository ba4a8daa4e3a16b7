// Which trials are stopped early: pure functions of what has been reported.

import type { SearchRecord } from '../queue/index.ts';

export type StopRule = NonNullable<SearchRecord['stopping']>;
type Goal = NonNullable<SearchRecord['metric']>['goal'];

/** The median of fewer values says little. */
const MIN_OTHERS = 4;
const MAX_RUNGS = 100;

/** The steps at which a trial is compared with others, up to this one, in order. */
export function rungsUntil(rule: StopRule, step: number): number[] {
  if (rule.kind !== 'median') return rule.rungs.filter((rung) => rung <= step);
  const count = Math.floor(step / rule.first);
  // The last ones count if there are many.
  const from = Math.max(1, count - MAX_RUNGS + 1);
  return Array.from({ length: count - from + 1 }, (_, i) => (from + i) * rule.first);
}

/** Values of a trial at the last rung that it has reached. `best`: up to now. */
export interface RungValues {
  value: number;
  best: number;
}

/**
 * Whether a trial is stopped at a rung.
 * @param others values of other trials that have reached it: see {@link valueAtRung}
 */
export function isStopped(
  rule: StopRule,
  goal: Goal,
  { value, best }: RungValues,
  others: readonly number[],
): boolean {
  const isBetter = (other: number, than: number) => (goal === 'minimize' ? other < than : other > than);
  const sorted = (values: readonly number[]) => values.toSorted((a, b) => (isBetter(a, b) ? -1 : 1));
  if (rule.kind === 'median') {
    if (others.length < MIN_OTHERS) return false;
    const all = sorted(others);
    const [one, two] = [all[(all.length - 1) >> 1] as number, all[all.length >> 1] as number];
    return isBetter((one + two) / 2, value);
  }
  if (rule.kind === 'wandb') {
    const all = sorted([value, ...others]);
    // Computed as in Python there: 1/eta is rounded first.
    const threshold = all[Math.floor((1 / rule.eta) * all.length)] as number;
    return isBetter(threshold, rule.strict ? value : best);
  }
  // Successive halving keeps the best n/eta, rounded down, and at least one.
  const kept = Math.max(1, Math.floor((others.length + 1) / rule.eta));
  return others.filter((other) => isBetter(other, value)).length >= kept;
}

/** The value that a trial has at a rung for others: the reported one, or the best one until then. */
export function valueAtRung(rule: StopRule, { value, best }: RungValues): number {
  return rule.kind === 'median' ? best : value;
}
