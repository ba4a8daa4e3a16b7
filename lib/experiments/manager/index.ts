export { describeEvent, firstLine, timestamp } from './log.ts';
export { Manager } from './manager.ts';
export {
  Eta,
  failedTasks,
  formatProgress,
  formatRate,
  isOver,
  type Progress,
  readProgress,
} from './progress.ts';
