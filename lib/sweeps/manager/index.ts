export { describeEvent, firstLine } from './log.ts';
export { Manager } from './manager.ts';
