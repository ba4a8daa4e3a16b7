export { findSweepFiles } from './files.ts';
export { openSweep, type Sweep, type SweepSource } from './sweep.ts';
