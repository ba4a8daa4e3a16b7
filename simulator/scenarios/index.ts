export { playScenario } from './play.ts';
export { recordMachine } from './record.ts';
export { GROUPS_OF_KEYS, SETTINGS, TOOL_COMMANDS } from './words.ts';
