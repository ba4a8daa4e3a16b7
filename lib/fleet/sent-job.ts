// Jobs that this user has submitted to other machines, as files: to submit one once more elsewhere needs no word of the first machine, which
// could name any command.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ifPossible, ifThere } from '../errors.ts';
import { stateDirectory } from '../jobs/index.ts';
import { removeOlder, schema } from '../platform/index.ts';
import { directoryOn, MovingJobs } from './moving-job.ts';
import type { Environment } from './request.ts';

const KEPT_MS = 30 * 86_400_000;

export interface SentJob {
  /** The arguments of `submit` there: options, `--`, and the command. */
  words: string[];
  directory: string;
  environment: Environment;
}

const { listOf, pairOf, record, text } = schema;
const SENT: schema.Check<SentJob> = record({
  words: listOf(text),
  directory: text,
  environment: listOf(pairOf(text, text)),
});

const placeOfAll = () => join(stateDirectory(), 'gpu-owner', 'sent');
const fileOf = (host: string, id: number) => join(placeOfAll(), `${encodeURIComponent(host)}:${id}.json`);

/** Keeps what was submitted, for a month. Where that fails, the job itself goes on. */
export function noteSentJob(host: string, id: number, job: SentJob): void {
  // The home may not be writable, and the disk may be full.
  ifPossible(() => {
    const place = placeOfAll();
    mkdirSync(place, { recursive: true, mode: 0o700 });
    removeOlder(place, KEPT_MS);
    rmSync(fileOf(host, id), { force: true });
    writeFileSync(fileOf(host, id), JSON.stringify(job), { mode: 0o600, flag: 'wx' });
  }, undefined);
}

/** A job of a host, as it was submitted to it from here; null: it was not, or that is forgotten. */
export function sentJob(host: string, id: number): SentJob | null {
  const text = ifThere(() => readFileSync(fileOf(host, id), 'utf8'), null);
  if (text !== null) return schema.readAs(schema.jsonOf(SENT), text);
  const jobs = new MovingJobs();
  const isIt = (each: number) => {
    const at = jobs.read(each)?.at;
    return at?.host === host && at.id === id;
  };
  const found = jobs.ids().findLast(isIt);
  const moved = found === undefined ? null : jobs.read(found);
  return moved && { ...moved, directory: directoryOn(host, moved) };
}
