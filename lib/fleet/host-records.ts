// Answers of other machines: foreign text, of other versions of gpu-owner. Unknown fields are left out.
import type { PlaceState } from '../jobs/index.ts';
import { sanitize, schema } from '../platform/index.ts';
import {
  GPU,
  id,
  JOB,
  type Job,
  jobState,
  listOf,
  MAX_RECORDS,
  or,
  type QueueEntry,
  REPORT,
  REQUEST,
  type Report,
  record,
  type ShownGPU,
  SNAPSHOT,
  type Snapshot,
  text,
} from '../shapes/index.ts';

const { Mismatch, flag, matching } = schema;
type Check<T = unknown> = schema.Check<T>;

const OUTPUT = record({
  /** The job's number. */
  id,
  /** Where the next piece begins. */
  at: id,
  /** The size of the whole output, in bytes. */
  size: id,
  /** In base64. */
  bytes: matching(/^[A-Za-z0-9+/]*={0,2}$/),
  /** So many bytes before were not kept. */
  dropped: id,
  /** Whether the job has ended, and this is the last piece. */
  isOver: flag,
});
/** A piece of a job's output, as `logs --over-ssh` prints it. */
export type OutputPiece = schema.Checked<typeof OUTPUT>;

const PLACE = {
  boot: text,
  uid: or(id),
  id: or(id),
  state: or(jobState),
  decision: or(text),
  isOver: flag,
} satisfies Record<keyof PlaceState, Check>;

/** Records by what a host was asked for. */
export interface Records {
  output: OutputPiece;
  places: PlaceState;
  gpus: ShownGPU;
  queue: QueueEntry;
  jobs: Job;
  machines: Snapshot;
  /** One. */
  report: Report;
}

const CHECKS: Readonly<Record<keyof Records, Check>> = {
  gpus: listOf(GPU),
  queue: listOf(REQUEST, MAX_RECORDS),
  jobs: listOf(JOB, MAX_RECORDS),
  output: listOf(OUTPUT, 1),
  places: listOf(record(PLACE), 1),
  report: (value, path) => [REPORT(value, path)],
  machines: listOf(SNAPSHOT),
};

/** The records of an answer, harmless to show; a text: where it makes no sense. */
export function parseRecords<Kind extends keyof Records>(kind: Kind, json: string): Records[Kind][] | string {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch {
    return 'it is not JSON'; // nothing else fails there
  }
  try {
    return CHECKS[kind](value, kind) as Records[Kind][];
  } catch (error) {
    if (!(error instanceof Mismatch)) throw error;
    return `${sanitize(error.message)} has an impossible value`;
  }
}
