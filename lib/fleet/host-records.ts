// Answers of other machines: foreign text, of other versions of gpu-owner. Unknown fields are left out.
import type { PlaceState } from '../jobs/index.ts';
import { sanitize, schema } from '../platform/index.ts';
import type { Family } from '../prometheus/index.ts';
import {
  GPU,
  id,
  JOB,
  type Job,
  jobState,
  listOf,
  MAX_RECORDS,
  number,
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

const labels: Check = (value, path) => {
  const entries = Object.entries(schema.object(value, path));
  const isRight = ([name, each]: [string, unknown]) =>
    /^(?!__)[a-z_]{1,40}$/.test(name) && name !== 'host' && typeof each === 'string';
  if (!entries.every(isRight)) throw new Mismatch(path);
  return Object.fromEntries(entries.map(([name, each]) => [name, text(each, path)]));
};

/** Prometheus refuses the samples of all hosts if two are the same. */
const eachOnce =
  (check: Check, keyOf: (entry: Record<string, object>) => unknown): Check =>
  (value, path) => {
    const entries = check(value, path) as Record<string, object>[];
    if (new Set(entries.map(keyOf)).size < entries.length) throw new Mismatch(path);
    return entries;
  };

const METRIC = {
  name: matching(/^gpu_owner_(?!host_up$)[a-z_]{1,80}$/),
  type: matching(/^(?:gauge|counter)$/),
  help: text,
  samples: eachOnce(listOf(record({ labels, value: number }), MAX_RECORDS), ({ labels: all = {} }) =>
    JSON.stringify(Object.entries(all).sort()),
  ),
} satisfies Record<keyof Family, Check>;

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
  metrics: Family;
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
  metrics: eachOnce(listOf(record(METRIC)), ({ name }) => name),
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
