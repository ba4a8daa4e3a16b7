export { commandsPhase } from './commands-phase.ts';
export { noSweep, openSweep, openSweepIfAny, type Sweep, type SweepSource } from './sweep.ts';
