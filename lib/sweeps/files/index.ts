export { executedWords } from './command.ts';
export { choiceOf, decimal, isFixed, valueAt } from './distribution.ts';
export {
  type Comparison,
  drawTrials,
  isDrawn,
  isKnownAhead,
  type SearchOptions,
  type SeededSearch,
} from './search.ts';
export { MAX_RETRIES } from './sources.ts';
export {
  DEFAULT_ETA,
  type Distribution,
  MIN_ETA,
  rungsFrom,
  type SearchMethod,
  type SearchParameter,
} from './space.ts';
export { noSweep, openSweep, openSweepIfAny, type Sweep, type SweepSource } from './sweep.ts';
