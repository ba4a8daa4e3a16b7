// Jobs with an address that stays while they move between machines: any:5.
import type { ChildProcess } from 'node:child_process';
import { errorCode } from '../errors.ts';
import { type Job, UNKNOWN } from '../jobs/index.ts';
import { isoTime, sleep, usageError, userName } from '../platform/index.ts';
import { CANCELLED, LOST, type MovingJob, MovingJobs, type Place } from './moving-job.ts';

/** A job of another machine. */
export interface JobAddress {
  host: string;
  /** A number, or a name. */
  job: string;
}

/** Tells a person a line. */
export type Say = (text: string) => void;

/** The host of such an address. */
export const ANY = 'any';
const POLL_MS = 200;
/** Node.js needs less memory so. */
const NODE_OPTIONS = ['--max-semi-space-size=1', '--max-old-space-size=128', '--no-compilation-cache'];
/** So does the C library: with 50 jobs on three hosts, 17 MB are private in place of 24. */
const MEMORY = { MALLOC_ARENA_MAX: '1' };

/** @throws ERR_INVALID_ARGUMENT */
export function movingJob(word: string): MovingJob {
  const id = /^[1-9]\d{0,8}$/.test(word) ? Number(word) : namedJob(word);
  const job = id === null ? null : new MovingJobs().read(id);
  if (job !== null) return job;
  throw usageError(
    `you have no job ${ANY}:${word.slice(0, 60)} on this machine; \`gpu-owner jobs\` lists jobs that move`,
  );
}

function namedJob(name: string): number | null {
  const jobs = new MovingJobs();
  return jobs.ids().findLast((id) => jobs.read(id)?.name === name) ?? null;
}

/** The mover that this process has started. */
let started: ChildProcess | null = null;

/** Starts the process that moves this user's jobs, unless there is one. The mover outlives this process and the login. */
function ensureMover(say: Say): void {
  const jobs = new MovingJobs();
  jobs.lendAgent();
  // One that was started a moment ago may not have begun on a busy machine.
  if (jobs.mover !== null || (started !== null && started.exitCode === null && started.signalCode === null))
    return;
  const { spawn } = process.getBuiltinModule('node:child_process');
  const words = [...process.execArgv, ...NODE_OPTIONS, process.argv[1] as string, 'mover'];
  const mover = spawn(process.execPath, words, {
    ...{ detached: true, stdio: 'ignore', cwd: '/' },
    env: { ...process.env, ...MEMORY, SSH_AUTH_SOCK: jobs.agent },
  });
  started = mover;
  // On a busy machine it begins seconds later, and other submissions start none meanwhile.
  if (mover.pid !== undefined && !jobs.appointMover(mover.pid)) mover.kill();
  mover.on('error', (error) => say(`can't start the process that moves jobs (${errorCode(error)})`)).unref();
}

/** Resolves with a job as soon as that is so; null: the signal came first. */
async function untilMoving(
  id: number,
  isSo: (job: MovingJob) => boolean,
  say: Say,
  signal?: AbortSignal,
): Promise<MovingJob | null> {
  const jobs = new MovingJobs();
  for (let next = 0; signal?.aborted !== true; ) {
    const job = jobs.read(id);
    if (job !== null && isSo(job)) return job;
    // One that was killed has left the job where it is.
    if (performance.now() >= next) {
      ensureMover(say);
      next = performance.now() + 5_000;
    }
    await sleep(POLL_MS);
  }
  return null;
}

/** The address of a job on the host where it stands; null: it stands nowhere. */
export function placeOf({ at }: MovingJob): JobAddress | null {
  return at?.id == null ? null : { host: at.host, job: String(at.id) };
}

/** Waits until a job stays where it is. @returns its address there; null: it has ended without a start. Undefined: the signal came first */
export async function settledPlace(
  word: string,
  say: Say,
  signal?: AbortSignal,
): Promise<JobAddress | null | undefined> {
  const job = await untilMoving(movingJob(word).id, ({ step }) => step === 'settled', say, signal);
  return job === null ? undefined : placeOf(job);
}

/** Cancels a job while it moves. @returns where it has started already; null: it is cancelled */
export async function cancelMoving({ id }: MovingJob, say: Say): Promise<Place | null> {
  const jobs = new MovingJobs();
  if (jobs.read(id)?.step !== 'settled') jobs.cancel(id);
  const settled = await untilMoving(id, tellingNotes(say), say);
  if (settled === null || settled.note === CANCELLED || placeOf(settled) === null) return null;
  return settled.at;
}

/** Says what hinders a job. @returns whether it has settled, or isSo */
function tellingNotes(
  say: Say,
  isSo: (job: MovingJob) => boolean = () => false,
): (job: MovingJob) => boolean {
  let told: string | null = null;
  return (job) => {
    const isOver = job.step === 'settled' || isSo(job);
    if (!isOver && job.note !== null && job.note !== told) say(`${ANY}:${job.id}: ${job.note}`);
    told = job.note;
    return isOver;
  };
}

/** The parts of a new job that may move. */
export type NewMovingJob = Omit<
  MovingJob,
  'id' | 'submitted' | 'step' | 'settled' | 'at' | 'next' | 'left' | 'note'
>;

/** Makes a job, which the mover then submits. */
export function createMoving(job: NewMovingJob): MovingJob {
  const fresh = { step: 'submitting', settled: null, at: null, next: null, note: null } as const;
  return new MovingJobs().create({ ...job, ...fresh, left: [], submitted: Date.now() });
}

/** Resolves with a new job as soon as it stands in a queue, follows others, or can't start. */
export async function untilQueued(id: number, say: Say): Promise<MovingJob> {
  const isQueued = ({ at, after }: MovingJob) => after.length > 0 || at !== null;
  return (await untilMoving(id, tellingNotes(say, isQueued), say)) as MovingJob; // there is no signal
}

/** Jobs that still may move, as `jobs` lists them. */
export function movingJobs(): Job[] {
  const jobs = new MovingJobs();
  const moving = jobs.unsettled();
  if (moving.length > 0) jobs.lendAgent();
  return moving.map(listedMoving);
}

/** The state of a job that has ended without a start. */
export function stateWithoutStart({ note }: MovingJob): 'lost' | 'cancelled' {
  return note?.startsWith(LOST) ? 'lost' : 'cancelled';
}

/** A job as it is listed. One that stays where it is has its state there, which isn't known here. */
export function listedMoving(job: MovingJob): Job {
  const { id, name, command, count, after, step, note, submitted } = job;
  const isOver = step === 'settled';
  const at = placeOf(job);
  const place = at === null ? null : `${at.host}:${at.job}`;
  const where =
    place === null
      ? isOver
        ? null
        : after.length > 0
          ? `after job ${after.map(({ host, id: other }) => `${host}:${other}`).join(', ')}`
          : 'is put into a queue'
      : isOver
        ? `it is ${place}`
        : `waits as ${place}, and may move`;
  return {
    ...UNKNOWN,
    host: ANY,
    id,
    name,
    state: isOver ? stateWithoutStart(job) : 'moving',
    reason: [where, note].filter((each) => each !== null).join('; '),
    position: null,
    count,
    gpus: [],
    command,
    user: userName(process.geteuid?.() ?? 0),
    pid: isOver ? null : new MovingJobs().mover,
    submitted: isoTime(submitted),
  };
}
