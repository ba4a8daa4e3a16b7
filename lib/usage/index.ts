export type { Report, Sum } from '../shapes/index.ts';
export { ledgerDirectory } from './ledger-files.ts';
export { type BeginningLease, UsageLine } from './line.ts';
export { meanHours, readLedger, type Use } from './read.ts';
export { dailyHours, KINDS, type Kind, reportOf, type SumOptions } from './sums.ts';
