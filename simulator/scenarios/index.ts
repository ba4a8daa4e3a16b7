export { playScenario } from './play.ts';
export { recordMachine } from './record.ts';
export {
  CALLS,
  type Entries,
  KEYS_OF_BOTH,
  KEYS_OF_GPUS,
  KEYS_OF_THE_MACHINE,
  TOOL_COMMANDS,
} from './words.ts';
