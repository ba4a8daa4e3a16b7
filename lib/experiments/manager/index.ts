export { FileTail } from './file-tail.ts';
export { describeEvent, firstLine, timestamp } from './log.ts';
export { Manager } from './manager.ts';
export {
  failedTasks,
  formatProgress,
  formatRate,
  isOver,
  type Overview,
  overview,
  Pace,
} from './progress.ts';
