export {
  becomeHolder,
  becomeKeeper,
  claimForJob,
  claimUntilInputCloses,
  INHERITED,
  parseInherited,
} from './keeper.ts';
export type { Outcome, Supervised } from './supervised-process.ts';
export { parseTimeLimit } from './time-limit.ts';
export { WorkerClaim } from './worker-claim.ts';
