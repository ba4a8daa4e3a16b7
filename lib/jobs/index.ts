export {
  becomeHolder,
  becomeKeeper,
  claimForHolder,
  claimForJob,
  INHERITED,
  parseInherited,
} from './keeper.ts';
export type { Outcome, Supervised } from './supervised-process.ts';
export { WorkerClaim } from './worker-claim.ts';
