export { findSweepFiles, openSweep, type Sweep, type SweepSource } from './sweep.ts';
