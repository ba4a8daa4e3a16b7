export { describeEvent, firstLine } from './log.ts';
export { FileTail } from './file-tail.ts';
export { timestamp } from './log.ts';
export { Manager } from './manager.ts';
export { failedTasks, formatProgress, isOver, type Overview, overview } from './progress.ts';
export { formatRate, Pace } from './progress.ts';
