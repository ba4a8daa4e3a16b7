// A job that may move to another machine while it waits. Each of its places has a key, and for each key one word is written once, as a
// file that is never replaced: what becomes of the job there. So it starts in one place at most, by whomever, however often and whenever that is asked.
// docs/decisions/058-moving-jobs.md
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { errorCode, GPUOwnerError, ifThere } from '../errors.ts';
import { bootId, removeOlder, sleep, TIMEOUTS, usageError } from '../platform/index.ts';
import { cancelJob, MOVED } from './job-control.ts';
import { isAlive, type StoredJob } from './job-record.ts';
import { type Job, stateOf } from './job-state.ts';
import { type JobStore, unusable } from './job-store.ts';

/** The command runs there, or has run. */
export const STARTED = 'started';
/** The job held GPUs there, and no confirmation came in time. */
const EXPIRED = 'expired';
const POLL_MS = 50;

/** One of the places of a job. */
export interface MoveRequest {
  key: string;
  /** Whether it starts only once that is confirmed: it holds its GPUs until then, for a limited time. */
  isHeld: boolean;
}

/** The option's value. @throws ERR_INVALID_ARGUMENT */
export function parseMove(text: string): MoveRequest {
  const [, key, held] = /^([0-9a-f]{32})(:held)?$/.exec(text) ?? [];
  if (key === undefined) throw usageError('--move is for gpu-owner itself');
  return { key, isHeld: held !== undefined };
}

/** A place as its machine has it. */
export interface PlaceState {
  boot: string;
  /** The user whose jobs were looked through. */
  uid: number | null;
  /** The job's number; null: there is no such job there, or not yet. */
  id: number | null;
  state: Job['state'] | null;
  /** The word of the key; null: none is written yet. */
  decision: string | null;
  /** Whether its user has cancelled it, or it has failed before it started. */
  isOver: boolean;
}

/** `cancel`: it shall not start there, for the sake of the place with that key. `confirm`: a job that is held shall start. */
type MoveAction = { cancel: string } | 'confirm' | 'find';

/** Decides on a place, if that isn't decided. @returns how it stands afterwards */
export async function settleMove(store: JobStore, key: string, action: MoveAction): Promise<PlaceState> {
  const before = findJob(store, key);
  if (action === 'confirm') {
    // The word of a job that has died meanwhile is still free.
    const isThere = before !== null && isAlive(before);
    decide(store, key, isThere ? STARTED : EXPIRED);
  } else if (action !== 'find' && !isOver(before)) {
    const word = `cancelled for ${action.cancel}`;
    if (decide(store, key, word) === word) {
      const found = findJob(store, key);
      if (found !== null) await cancelJob(store, found.request.id, 0, true);
    }
  }
  return placeState(store, key);
}

function placeState(store: JobStore, key: string): PlaceState {
  const job = findJob(store, key);
  const id = job?.request.id ?? null;
  return {
    boot: bootId(),
    uid: process.geteuid?.() ?? null,
    id,
    state: id === null ? null : (stateOf(store, id)?.state ?? null),
    decision: readDecision(store, key),
    isOver: isOver(job),
  };
}

/** Whether the job there has ended by itself or by its user. */
function isOver(job: StoredJob | null): boolean {
  return job !== null && (job.cancellation !== null || job.progress?.failure !== undefined);
}

/** The newest jobs are looked at first: it is one of them. */
function findJob(store: JobStore, key: string): StoredJob | null {
  for (const id of store.ids().reverse()) {
    const job = store.read(id);
    if (job?.request.move?.key === key) return job;
  }
  return null;
}

/**
 * Called when a job has its GPUs: whether it starts here. One that is held waits until that is confirmed.
 * @throws ERR_ABORTED if it doesn't
 */
export async function startHere(store: JobStore, { key, isHeld }: MoveRequest): Promise<void> {
  const end = performance.now() + TIMEOUTS.hold;
  while (isHeld && readDecision(store, key) === null && performance.now() < end) await sleep(POLL_MS);
  const word = decide(store, key, isHeld ? EXPIRED : STARTED);
  if (word === STARTED) return;
  const why = word === EXPIRED ? 'the move was not confirmed in time' : MOVED;
  throw new GPUOwnerError('ERR_ABORTED', why);
}

const directoryOf = (store: JobStore) => join(store.path, 'moves');

/** Writes the word of a key, if it has none. @returns its word @throws ERR_JOBS */
function decide(store: JobStore, key: string, word: string): string {
  const directory = directoryOf(store);
  const path = join(directory, key);
  const draft = `${path}.${process.pid}`;
  try {
    mkdirSync(directory, { recursive: true, mode: 0o700 });
    writeFileSync(draft, word, { mode: 0o600, flush: true });
    try {
      linkSync(draft, path);
    } catch (error) {
      if (errorCode(error) !== 'EEXIST') throw error;
    } finally {
      rmSync(draft, { force: true });
    }
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw unusable(directory, error);
  }
}

function readDecision(store: JobStore, key: string): string | null {
  return ifThere(() => readFileSync(join(directoryOf(store), key), 'utf8'), null);
}

/** Removes words that are older. @param age in ms */
export function pruneMoves(store: JobStore, age: number): void {
  removeOlder(directoryOf(store), age);
}
