export { claimForJob } from './job-claim.ts';
export { becomeHolder, becomeKeeper, INHERITED, parseInherited } from './keeper.ts';
export type { Outcome, Supervised } from './supervised-process.ts';
export { WorkerClaim } from './worker-claim.ts';
