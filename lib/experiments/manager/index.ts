export { describeEvent, firstLine } from './events.ts';
export { FileTail } from './file-tail.ts';
export { timestamp } from './log.ts';
export { Manager } from './manager.ts';
export { failedTasks, formatProgress, isOver, type Overview, overview } from './overview.ts';
export { formatRate, Pace } from './pace.ts';
