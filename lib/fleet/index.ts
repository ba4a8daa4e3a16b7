// Other machines, asked over ssh by a person who may log in there. ssh's own configuration decides on users, ports and jumps; no key
// and no password passes through here.

export {
  ANY,
  cancelMoving,
  type JobAddress,
  movingJob,
  movingJobs,
  placeOf,
  settledPlace,
} from './any-jobs.ts';
export { type Channel, openChannel } from './channel.ts';
export { type CommandElsewhere, commandFor, runElsewhere, submitElsewhere } from './elsewhere.ts';
export {
  askHosts,
  chooseHosts,
  commandOnHost,
  type HostAnswer,
  hostsToUse,
  watchHosts,
} from './fleet.ts';
export type { HostFailure } from './host-failure.ts';
export type { OutputPiece, Records } from './host-records.ts';
export {
  ANSWER_TIMEOUT_MS,
  type AskedJobs,
  followJobs,
  hostFailed,
  hostOf,
  jobsElsewhere,
  livingElsewhere,
  waitElsewhere,
} from './jobs-elsewhere.ts';
export { Mover } from './mover.ts';
export { type MovingJob, MovingJobs } from './moving-job.ts';
export { showOutput, waitOnHost } from './remote-jobs.ts';
export { environmentFor } from './request.ts';
