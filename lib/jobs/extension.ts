// More time for jobs that have a time limit: docs/decisions/040-time-limits.md
import { closeSync } from 'node:fs';
import { allowedTime, LockDirectory, wakeRequest, whyNotLonger } from '../claims/index.ts';
import { loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { sleep } from '../platform/index.ts';
import { isAlive, limitOf, type StoredJob, signalJob, writeBlock } from './job-record.ts';
import { isLiving, stateOf } from './job-state.ts';
import type { JobStore } from './job-store.ts';

/** The keeper and its front get a new limit by it, in s. As in native/keeper/signals.h. */
const EXTEND = 62; // SIGRTMAX - 2
const POLL_MS = 20;
/** How long the keeper may take, in ms. */
const KEEPER_TIMEOUT_MS = 5_000;

/**
 * Lets a job run longer than its limit: one that runs, and one that waits.
 * @param ms how much longer @returns its limit now, in ms
 * @throws ERR_INVALID_ARGUMENT where it may not, ERR_JOBS if it has ended
 */
export async function extendJob(store: JobStore, id: number, ms: number): Promise<number> {
  const found = stateOf(store, id);
  if (found === null || !isLiving(found.state)) throw refused(id, 'has ended', 'ERR_JOBS');
  const { job, state } = found;
  if (job.request.array !== undefined)
    throw refused(id, `is an array; extend its parts one by one, such as ${id}_0`);
  const before = limitOf(job);
  if (before === null) throw refused(id, 'has no time limit, so it runs until it ends');
  const limit = Math.ceil((before + ms) / 1_000) * 1_000;
  allowedTime(limit, 'jobs extend');
  if (state === 'running') refuseInTheWay(id, job, limit);
  const file = store.openFile(id);
  try {
    if (!writeBlock(file, 'limit', { ms: limit }))
      throw refused(id, "has a file that can't be written", 'ERR_JOBS');
  } finally {
    closeSync(file);
  }
  // Its process reads the limit once it has noted that it starts, so none is missed.
  if (stateOf(store, id)?.state === 'waiting') tellWaiter(id);
  else await tellKeeper(store, id, limit);
  return limit;
}

/** @throws ERR_INVALID_ARGUMENT if others need its GPUs before that */
function refuseInTheWay(id: number, { request, progress }: StoredJob, limit: number): void {
  const directory = LockDirectory.find(undefined, loadConfiguration());
  const { gpus = [], started, order = null } = progress ?? {};
  if (directory === null || started === undefined) return;
  const why = whyNotLonger(directory, gpus, { class: request.class, order, started, end: started + limit });
  if (why !== null) throw refused(id, `can't run longer: ${why}`);
}

/** Its request says the limit to others; a waiter that is woken starts Node.js, which reads it. */
function tellWaiter(id: number): void {
  const directory = LockDirectory.find(undefined, loadConfiguration());
  if (directory !== null) wakeRequest(directory, ({ info }) => info.job === id);
}

async function tellKeeper(store: JobStore, id: number, limit: number): Promise<void> {
  const end = Date.now() + KEEPER_TIMEOUT_MS;
  for (let job = store.read(id); job !== null && isAlive(job); job = store.read(id)) {
    if (job.end?.limit === limit) return;
    if (Date.now() > end)
      throw refused(id, 'does not answer: its processes are suspended or hang', 'ERR_JOBS');
    for (const pid of [job.end?.keeper, job.end?.front])
      signalJob(pid, job.request.lock, EXTEND, limit / 1_000);
    await sleep(POLL_MS);
  }
  throw refused(id, 'has ended', 'ERR_JOBS');
}

function refused(
  id: number,
  why: string,
  code: 'ERR_JOBS' | 'ERR_INVALID_ARGUMENT' = 'ERR_INVALID_ARGUMENT',
) {
  return new GPUOwnerError(code, `job ${id} ${why}.`);
}
