export { openBullMQQueue } from './engine.ts';
