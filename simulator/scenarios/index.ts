export { playScenario } from './play.ts';
export { recordMachine } from './record.ts';
