export type { CheckResult } from './check.ts';
export type { Finding, Level, Subject } from './finding.ts';
export { Page } from './page.ts';
export { runPart } from './part.ts';
export { runCheck, runChecks } from './run-checks.ts';
export { runSelftest, type SelftestReport } from './run-selftest.ts';
