export { examine, runPart } from './examination.ts';
export type { Finding, Level, Subject } from './finding.ts';
