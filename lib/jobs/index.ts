export { INHERITED, parseInherited } from './inherited.ts';
export { becomeHolder, becomeKeeper, claimForJob, claimUntilInputCloses } from './keeper.ts';
export type { Outcome, Supervised } from './supervised-process.ts';
export { parseTimeLimit } from './time-limit.ts';
export { becomeWaiter, type ContinuedWait, continueWait, type WaiterOptions } from './waiter.ts';
export { WorkerClaim } from './worker-claim.ts';
