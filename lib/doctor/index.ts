export type { Finding, Level, Subject } from './finding.ts';
export { runCheck, runChecks } from './run-checks.ts';
