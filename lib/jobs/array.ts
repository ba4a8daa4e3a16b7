// Arrays of jobs: one job with numbered parts, as `sbatch --array` has them.
import { invalidArgument, showValue } from '../platform/index.ts';
import { namesOf } from './job-state.ts';
import type { JobStore } from './job-store.ts';

/** The parts of an array. */
interface JobArray {
  /** In ascending order. */
  ids: readonly number[];
  /** How many may run at the same time; null: as many as there are GPUs. */
  atOnce: number | null;
}

const MAX_PARTS = 100_000;
const EXAMPLE = 'use 0-99, 0-99:2, 1,3,7, and %4 behind it for four at a time';

/** Reads `0-99`, `0-99:2`, `1,3,7-9`, with `%4` behind it. @throws ERR_INVALID_ARGUMENT */
export function parseArray(text: string): JobArray {
  const refuse = (why: string) => invalidArgument(`--array: ${showValue(text)} ${why}; ${EXAMPLE}`);
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
      if (ids.add(id).size > MAX_PARTS) throw refuse(`has more than ${MAX_PARTS.toLocaleString('en')} parts`);
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

/** A part of an array: `17_3` is part 3 of job 17. */
export interface JobPart {
  job: number;
  part: number;
}

const PART = /^(\d{1,9})_(\d{1,9})$/;

/**
 * The parts of arrays that words mean; all jobs are read once.
 * @returns null: the word means a job @throws ERR_INVALID_ARGUMENT for a part that the array doesn't have
 */
export function partsOf(store: JobStore, words: readonly string[]): (JobPart | null)[] {
  const arrays = new Map<number, { parts: ReadonlySet<number> | null; text: unknown } | null>();
  const arrayAt = (job: number) => {
    const request = store.read(job)?.request;
    if (request === undefined) return null;
    const array = arrayOf(request);
    return { parts: array === null ? null : new Set(array.ids), text: request.array };
  };
  const names = words.some((word) => PART.test(word)) ? namesOf(store) : new Set();
  return words.map((word) => {
    const [, job, part] = PART.exec(word) ?? [];
    if (job === undefined || names.has(word)) return null;
    const id = Number(job);
    if (!arrays.has(id)) arrays.set(id, arrayAt(id));
    const array = arrays.get(id) ?? null;
    if (array === null) return null;
    if (array.parts === null) throw invalidArgument(`job ${job} is no array, so it has no part ${part}`);
    if (!array.parts.has(Number(part)))
      throw invalidArgument(`job ${job} has no part ${part}; its parts are ${array.text}`);
    return { job: id, part: Number(part) };
  });
}

/** As {@link partsOf}, for one. */
export function partOf(store: JobStore, word: string): JobPart | null {
  return partsOf(store, [word])[0] ?? null;
}

/** The word for a job from its first answer on: a name may be that of another job later, and a part of an array stays one. */
export function wordOf(asked: string, id: number | null): string {
  return asked.startsWith(`${id}_`) ? asked : String(id);
}

/** The parts of a job. null: it is no array, or its file has been changed. */
export function arrayOf({ array }: { array?: string | null }): JobArray | null {
  try {
    return array == null ? null : parseArray(array);
  } catch {
    return null;
  }
}
