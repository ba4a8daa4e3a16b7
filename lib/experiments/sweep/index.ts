export { noSweep, openSweep, openSweepIfAny, type Sweep, type SweepSource } from './sweep.ts';
