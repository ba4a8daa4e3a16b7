// Parts of arrays of jobs, such as 17_3: what the commands for jobs do with them.
import { existsSync, statSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import {
  type AttemptInfo,
  cancelTasks,
  type Queue,
  retryTasks,
  type TaskRow,
  withQueue,
} from '../experiments/index.ts';
import {
  arrayOf,
  formatArray,
  isLiving,
  type Job,
  type JobPart,
  type JobStore,
  jobAt,
} from '../jobs/index.ts';
import { isoTime, now, sanitize } from '../platform/index.ts';
import { say } from './output.ts';

/** A job, and which part of it. */
export interface Part extends Job {
  part: number;
}

const POLL_MS = 500;
const MAX_REASON_LENGTH = 1_000;

/** @returns null: the array has not begun */
async function withParts<T>(
  store: JobStore,
  job: number,
  use: (queue: Queue) => Promise<T>,
): Promise<T | null> {
  const directory = store.directoryOf(job);
  if (!existsSync(join(directory, '.gpu-owner/queue.db'))) return null;
  let result: T | null = null;
  await withQueue({ directory, url: null }, async (queue) => {
    result = await use(queue);
  });
  return result;
}

/** @throws ERR_INVALID_ARGUMENT if the array has not begun */
async function withPart(
  store: JobStore,
  part: JobPart,
  use: (queue: Queue, row: TaskRow) => Promise<void>,
): Promise<void> {
  const isThere = await withParts(store, part.job, async (queue) => {
    const row = await rowOf(queue, part);
    if (row !== null) await use(queue, row);
    return row !== null;
  });
  if (isThere) return;
  throw new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `the array ${part.job} has not begun, so its parts can't be had one by one; wait, or name the whole job`,
  );
}

/** @returns null: the parts aren't in the queue yet */
async function rowOf(queue: Queue, part: JobPart): Promise<TaskRow | null> {
  for await (const row of queue.tasks({ match: nameOf(part), limit: 1 })) return row;
  return null;
}

function nameOf({ job, part }: JobPart): string {
  return `${job}_${part}`;
}

/** How parts stand, in their order. An array that has not begun has waiting ones. */
export async function describeParts(store: JobStore, parts: readonly JobPart[]): Promise<Part[]> {
  const described = new Map<JobPart, Part>();
  for (const id of new Set(parts.map((part) => part.job))) {
    const job = jobAt(store, id);
    const wanted = parts.filter((part) => part.job === id);
    for (const each of wanted) described.set(each, { ...job, part: each.part, progress: null, output: null });
    const request = store.read(id)?.request;
    await withParts(store, id, async (queue) => {
      for (const each of wanted) {
        const part = await describePart(queue, job, each);
        const path = request === undefined ? null : store.outputOfPart(request, each.part);
        // null: it has never begun
        if (part !== null)
          described.set(each, { ...part, output: path !== null && existsSync(path) ? path : null });
      }
    });
  }
  return parts.map((part) => described.get(part) as Part);
}

/** Describes a part again and again, and reads its queue only when something may have changed. */
export function partWatcher(store: JobStore, part: JobPart): () => Promise<Part> {
  const queue = join(store.directoryOf(part.job), '.gpu-owner/queue.db');
  const request = store.read(part.job)?.request;
  const output = request === undefined ? queue : store.outputOfPart(request, part.part);
  let seen = '';
  let last: Part | null = null;
  return async () => {
    const files = [queue, `${queue}-wal`].map((path) => statSync(path, { throwIfNoEntry: false }));
    const states = files.map((file) => file && `${file.ino} ${file.size} ${file.mtimeMs}`);
    const now = [...states, existsSync(output), jobAt(store, part.job).state].join();
    if (last === null || now !== seen) last = (await describeParts(store, [part]))[0] as Part;
    seen = now;
    return last;
  };
}

async function describePart(queue: Queue, job: Job, part: JobPart): Promise<Part | null> {
  const row = await rowOf(queue, part);
  if (row === null) return null;
  const attempt = (await queue.attempts({ taskId: row.task.id })).at(-1) ?? null;
  const state = stateOf(row, job);
  const isOver = !isLiving(state);
  const ended = row.ended ?? attempt?.ended ?? null;
  return {
    ...job,
    part: part.part,
    state,
    exitCode: isOver ? exitCodeOf(row, state) : null,
    reason: row.error === null ? null : sanitize(row.error.split('\n')[0], MAX_REASON_LENGTH),
    gpus: state === 'running' && attempt !== null ? gpusOf(attempt) : [],
    started: attempt === null ? null : isoTime(attempt.since),
    ended: isOver && ended !== null ? isoTime(ended) : null,
    pid: null,
    progress: null,
  };
}

function stateOf({ state }: TaskRow, job: Job): Job['state'] {
  if (state === 'completed' || state === 'failed' || state === 'cancelled') return state;
  if (!isLiving(job.state)) return job.state === 'lost' ? 'lost' : 'cancelled';
  return state === 'active' ? 'running' : 'waiting';
}

const SIGNAL_BASE = 128;

function exitCodeOf({ error }: TaskRow, state: Job['state']): number | null {
  if (state === 'completed') return 0;
  if (state !== 'failed') return null;
  const [, code, signal] = /^(?:exit code (\d+)|killed by (SIG[A-Z0-9]+))/.exec(error ?? '') ?? [];
  if (code !== undefined) return Number(code);
  return signal === undefined
    ? 1
    : SIGNAL_BASE + (new Map(Object.entries(constants.signals)).get(signal) ?? 0);
}

/** The numbers of the GPUs stand in the worker's name: `gpu0-1`; `gpu0.2` is a MIG instance, or a share of GPU 0. */
function gpusOf({ worker }: AttemptInfo): Job['gpus'] {
  const names = worker.name.replace(/^gpu/, '').split('-');
  return worker.gpus.map((uuid, i) => {
    const [index, instance] = (names[i] ?? '').split('.').map(Number);
    return {
      index: index || 0,
      ...(instance !== undefined && uuid.startsWith('MIG-') ? { instance } : {}),
      uuid,
    };
  });
}

/** Cancels a part, and waits until nothing of it runs. @param graceMs for how long @returns whether it worked */
export async function cancelPart(store: JobStore, part: JobPart, graceMs: number): Promise<boolean> {
  let isOver = false;
  await withPart(store, part, async (queue, { task: { id } }) => {
    const { unchanged } = await cancelTasks(queue, [nameOf(part)]);
    if (unchanged > 0) say(`job ${nameOf(part)} had ended already`);
    const until = now() + graceMs;
    while (!isOver && now() <= until) {
      const living = await queue.attempts('living');
      isOver = !living.some(({ taskId }) => taskId === id);
      if (!isOver) await queue.changed(POLL_MS);
    }
  });
  return isOver;
}

/** @param timeout ms; null: without limit @returns how they ended, in their order; null: the time is up */
export async function waitForParts(
  store: JobStore,
  parts: readonly JobPart[],
  timeout: number | null,
): Promise<Part[] | null> {
  const end = timeout === null ? Number.POSITIVE_INFINITY : now() + timeout;
  for (;;) {
    const described = await describeParts(store, parts);
    if (!described.some((part) => isLiving(part.state))) return described;
    if (now() >= end) return null;
    await new Promise((resolve) => setTimeout(resolve, Math.min(POLL_MS, Math.max(1, end - now()))));
  }
}

/** Starts a part of a living array again. */
export async function retryPart(store: JobStore, part: JobPart): Promise<void> {
  await withPart(store, part, async (queue) => {
    const { unchanged } = await retryTasks(queue, [nameOf(part)]);
    if (unchanged === 0) return;
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `job ${nameOf(part)} has not ended; cancel it first`);
  });
}

/**
 * The parts of an array that a new job is for, as `--array` takes them; null: the job is no array, or has not begun.
 * @param wanted those that failed or were not run; those that aren't completed @returns '' if there are none
 */
export async function partsToResubmit(
  store: JobStore,
  job: number,
  wanted: 'failed' | 'lost',
): Promise<string | null> {
  const request = store.read(job)?.request;
  const array = request === undefined ? null : arrayOf(request);
  if (array === null) return null;
  return withParts(store, job, async (queue) => {
    const ids: number[] = [];
    for await (const { task, state } of queue.tasks()) {
      const isWanted = state !== 'completed' && (wanted === 'lost' || state !== 'cancelled');
      const part = /_(\d+)$/.exec(task.name)?.[1];
      if (isWanted && part !== undefined) ids.push(Number(part));
    }
    if (ids.length === 0) return '';
    return formatArray(
      ids.sort((a, b) => a - b),
      array.atOnce,
    );
  });
}
