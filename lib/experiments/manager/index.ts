export { describeEvent, firstLine } from './log.ts';
export { Manager } from './manager.ts';
export {
  Eta,
  formatProgress,
  formatRate,
  isOver,
  type Progress,
  readFailures,
  readProgress,
  readStatus,
  type Status,
} from './progress.ts';
