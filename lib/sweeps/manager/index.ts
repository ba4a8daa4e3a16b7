export { describeEvent, firstLine } from './log.ts';
export { Manager } from './manager.ts';
export {
  Eta,
  formatProgress,
  formatRate,
  isOver,
  type Progress,
  type RunProgress,
  readFailures,
  readProgress,
  readStatus,
  type Status,
  type Tally,
  tallyOf,
} from './progress.ts';
