export { choiceOf, decimal, isFixed, valueAt } from './distribution.ts';
export {
  type Comparison,
  drawTrials,
  isDrawn,
  isKnownAhead,
  type SearchOptions,
  type SeededSearch,
  stopRule,
} from './search.ts';
export type { Distribution, SearchMethod, SearchParameter } from './space.ts';
export { noSweep, openSweep, openSweepIfAny, type Sweep, type SweepSource } from './sweep.ts';
