export { commandsPhase } from './commands-phase.ts';
export { choiceOf, isFixed, valueAt } from './distribution.ts';
export { placeOf } from './hydra.ts';
export { drawTrials, isKnownAhead, type SearchOptions, type SeededSearch } from './search.ts';
export type { Distribution, Metric, Search, SearchMethod, SearchParameter } from './search-space.ts';
export {
  noSweep,
  openSweep,
  openSweepIfAny,
  type Sweep,
  type SweepSource,
} from './sweep.ts';
