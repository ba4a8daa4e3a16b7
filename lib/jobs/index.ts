export {
  ArrayRun,
  wordOf,
} from './array.ts';
export { commandProblem } from './command-check.ts';
export { extendJob } from './extension.ts';
export { type IdleLimit, parseIdle } from './idle-limit.ts';
export { hangUpWithSSHD, wasIgnored } from './inherited.ts';
export { exitCodeOfEnd } from './job-control.ts';
export { followOutput, type OutputPart } from './job-output.ts';
export { formatArray, type NamedJob, parseArray, resolveJobs, resolveNames } from './job-parts.ts';
export { type JobHooks, JobProcess } from './job-process.ts';
export type { JobElsewhere } from './job-record.ts';
export { checkJobOptions, type JobOptions } from './job-request.ts';
export {
  formatPart,
  isLiving,
  type Job,
  jobAt,
  listJobs,
  stateOf,
  UNKNOWN,
} from './job-state.ts';
export { JobStore } from './job-store.ts';
export {
  becomeHolder,
  becomeKeeper,
  claimForJob,
  claimUntilInputCloses,
} from './keeper.ts';
export { type PlaceState, parseMove, STARTED, settleMove } from './move.ts';
export {
  cancelNamed,
  describeNamed,
  formatName,
  resubmitNamed,
  waitForNamed,
} from './named-jobs.ts';
export { JOB_EVENTS, notifyOfJob } from './notification.ts';
export { type Preemption, parsePreemption } from './preemption.ts';
export { belowSubmitter, isJob, readStart, type Start, type WaitLine } from './start.ts';
export { submitJob } from './submission.ts';
export type { Outcome, Supervised } from './supervised-process.ts';
export { SweepProgress } from './sweep-progress.ts';
export { parseTimeLimit, type TimeLimit } from './time-limit.ts';
export { pauseJob, putJobsFirst, resumeJob } from './waiting-jobs.ts';
export { WorkerClaim } from './worker-claim.ts';
