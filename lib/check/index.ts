export type { Finding, Level } from './finding.ts';
export { Page } from './page.ts';
export { runPart } from './part.ts';
export { diagnose } from './run-checks.ts';
export { type CheckResult, runSelftest, type SelftestReport } from './selftest.ts';
