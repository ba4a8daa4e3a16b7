export type { CheckResult } from './check.ts';
export { runPart } from './part.ts';
export { runSelftest, type SelftestReport } from './run-selftest.ts';
