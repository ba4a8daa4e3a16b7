// Other machines, asked over ssh by a person who may log in there. ssh's own configuration decides on users, ports and jumps; no key
// and no password passes through here.

export { type Channel, openChannel } from './channel.ts';
export { expectedWait, wantedOf } from './expected-wait.ts';
export { askHosts, chooseHosts, commandOnHost, type HostAnswer, submitOnHost, watchHosts } from './fleet.ts';
export type { HostFailure } from './host-failure.ts';
export { type FollowJobs, Mover } from './mover.ts';
export { CANCELLED, LOST, type MovingJob, MovingJobs, type Place } from './moving-job.ts';
export { firstQueue, type HostRefusal, startWhereFree } from './placement.ts';
export type { OutputPiece, Records } from './records.ts';
export { runOnHost } from './remote-command.ts';
export { readFromHost } from './remote-file.ts';
export { showOutput, waitOnHost } from './remote-jobs.ts';
export type { Environment } from './request.ts';
export { noteSentJob, type SentJob, sentJob } from './sent-job.ts';
