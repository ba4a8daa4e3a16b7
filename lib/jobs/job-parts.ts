// The parts of arrays, as words and options name them.
import { ifPossible } from '../errors.ts';
import { formatCount, listWords, showValue, usageError } from '../platform/index.ts';
import type { JobPart, JobRequest } from './job-record.ts';
import { formatPart, isLiving, stateOf, unknownJob } from './job-state.ts';
import type { JobStore } from './job-store.ts';

/** The parts of an array. */
export interface JobArray {
  /** In ascending order. */
  ids: readonly number[];
  /** How many may run at the same time; null: as many as get GPUs. */
  atOnce: number | null;
}

const MAX_PARTS = 1_000;
const EXAMPLE = 'use 0-99, 0-99:2, 1,3,7, and %4 after it for four at a time';

/** Reads `0-99`, `0-99:2`, `1,3,7-9`, with `%4` after it. @throws ERR_INVALID_ARGUMENT */
export function parseArray(text: string): JobArray {
  const refuse = (why: string) => usageError(`--array: ${showValue(text)} ${why}; ${EXAMPLE}`);
  const [, list = '', limit] = /^([^%]*)(?:%(\d{1,9}))?$/.exec(text) ?? [];
  if (limit !== undefined && Number(limit) === 0) throw refuse('would run none at a time');
  const ids = new Set<number>();
  for (const range of list.split(',')) {
    const [, first, last = first, step = '1'] =
      /^\s*(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\s*$/.exec(range) ?? [];
    if (first === undefined) throw refuse('is not a list of numbers and ranges');
    if (Number(last) < Number(first)) throw refuse(`has ${first}-${last}, which ends before it begins`);
    if (Number(step) === 0) throw refuse('has the step 0');
    for (let id = Number(first); id <= Number(last); id += Number(step)) {
      if (ids.add(id).size > MAX_PARTS)
        throw usageError(
          `--array: ${showValue(text)} has more than ${formatCount(MAX_PARTS)} parts; \`gpu-owner exp run --grid\` runs more`,
        );
    }
  }
  return { ids: [...ids].sort((a, b) => a - b), atOnce: limit === undefined ? null : Number(limit) };
}

/** Some parts of an array, as `--array` takes them: `1,3,7-9%4`. */
export function formatArray(ids: readonly number[], atOnce: number | null): string {
  const ranges: [number, number][] = [];
  for (const id of ids) {
    const last = ranges.at(-1);
    if (last !== undefined && last[1] === id - 1) last[1] = id;
    else ranges.push([id, id]);
  }
  const text = ranges.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(',');
  return atOnce === null ? text : `${text}%${atOnce}`;
}

/** The parts of a job. null: it is no array, or its file has been changed. */
export function arrayOf({ array }: Pick<JobRequest, 'array'>): JobArray | null {
  return ifPossible(() => (array === undefined ? null : parseArray(array)), null);
}

/** A job by its number, or a part of an array, which has no number until it has begun. */
export type NamedJob = number | JobPart;

/** The number of the job; null: a part that has not begun. */
export function numberOf(store: JobStore, named: NamedJob): number | null {
  return typeof named === 'number' ? named : store.jobOfPart(named);
}

/** What a user means by a number, a name, or a part such as 17_3. All jobs are read once. @throws ERR_INVALID_ARGUMENT */
export function resolveNames(store: JobStore, words: readonly string[]): NamedJob[] {
  let byName: Map<string, number[]> | null = null;
  return words.map((word) => {
    const [, id, index] = /^(\d{1,9})(?:_(\d{1,9}))?$/.exec(word) ?? [];
    if (index !== undefined) return partOf(store, { id: Number(id), index: Number(index) });
    if (id === undefined) {
      byName ??= idsByName(store);
      return meantBy(store, word, byName.get(word) ?? []);
    }
    if (store.read(Number(id)) === null) throw unknownJob(word);
    return Number(id);
  });
}

/** As {@link resolveNames}, for what only parts that have begun can do. @throws ERR_INVALID_ARGUMENT */
export function resolveJobs(store: JobStore, words: readonly string[]): number[] {
  return resolveNames(store, words).map((named, i) => {
    const id = numberOf(store, named);
    if (id !== null) return id;
    throw usageError(`part ${words[i]} has not begun; wait, or give the array`);
  });
}

/** The numbers of the jobs that have a name. That of an array means the array. */
function idsByName(store: JobStore): Map<string, number[]> {
  const found = new Map<string, number[]>();
  for (const id of store.ids()) {
    const { name, part } = store.read(id)?.request ?? {};
    if (name == null || part !== undefined) continue;
    const same = found.get(name);
    if (same === undefined) found.set(name, [id]);
    else same.push(id);
  }
  return found;
}

/** Of several jobs with a name the one that hasn't ended, or the newest where all have. */
function meantBy(store: JobStore, name: string, ids: readonly number[]): number {
  const living = ids.length < 2 ? [] : ids.filter((id) => isLiving(stateOf(store, id)?.state));
  if (living.length > 1)
    throw usageError(
      `${living.length} jobs that have not ended are called ${showValue(name)}: give one of their numbers, ${listWords(living.map(String), 'or')}`,
    );
  const id = living[0] ?? ids.at(-1);
  if (id === undefined) throw unknownJob(name);
  return id;
}

function partOf(store: JobStore, part: JobPart): JobPart {
  const request = store.read(part.id)?.request;
  if (request === undefined) throw unknownJob(part.id);
  const array = arrayOf(request);
  if (array === null) throw usageError(`job ${part.id} is no array, so it has no part ${part.index}`);
  if (array.ids.includes(part.index)) return part;
  throw usageError(`job ${part.id} has no part ${part.index}; its parts are ${request.array}`);
}

/** A job, or a part of an array, that another one follows. */
export type JobBefore = JobRequest['after'][number];

/** The job that is followed; null: a part that has not begun. */
export function jobBefore(store: JobStore, { id, part }: Pick<JobBefore, 'id' | 'part'>): number | null {
  return part === undefined ? id : store.jobOfPart({ id, index: part });
}

/** Whether a job that is followed waits or runs, or may still begin. */
export function isAhead(store: JobStore, before: Pick<JobBefore, 'id' | 'part'>): boolean {
  return isLiving(stateOf(store, jobBefore(store, before) ?? before.id)?.state);
}

export function formatBefore({ id, part, samePart }: JobBefore): string {
  if (samePart) return `${id}_%a`;
  return part === undefined ? String(id) : formatPart({ id, index: part });
}
