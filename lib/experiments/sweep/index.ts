export { commandsPhase } from './commands-phase.ts';
export { placeOf } from './hydra.ts';
export { noSweep, openSweep, openSweepIfAny, type Sweep, type SweepSource } from './sweep.ts';
