// The records that only the web server sends: a schema each, for the types and for the description of the API.
import { schema } from '../../platform/index.ts';
import {
  id,
  index,
  JOB,
  jobState,
  listOf,
  MACHINE,
  number,
  or,
  record,
  shape,
  TRIAL_FIELDS,
  text,
  time,
} from '../../shapes/index.ts';

const { described, flag } = schema;
const percentages = listOf(or(id));

const STREAM_MACHINE = record({
  host: text,
  isLocal: described(
    flag,
    "the server's own, which has more answers, and whose jobs are named without a host",
  ),
  problem: described(or(text), 'why the snapshot is not current; null: it is'),
  snapshot: described(or(shape('Snapshot', MACHINE)), 'the last one; null: none yet'),
  jobs: listOf(shape('Job', JOB)),
});
export interface StreamMachine extends schema.Checked<typeof STREAM_MACHINE> {}

const STREAM_LINE = record(
  {
    time: described(time, 'when it was sent'),
    intervalSeconds: described(number, 'a line comes at least this often, unless the server hangs'),
    user: described(text, 'the user of the server, whose jobs are among them'),
    machines: listOf(STREAM_MACHINE),
  },
  'A line of the stream: everything, not only what has changed.',
);
export interface StreamLine extends schema.Checked<typeof STREAM_LINE> {}

const GPU_DAY = record(
  {
    uuid: text,
    index,
    instance: or(index),
    name: text,
    spanSeconds: described(id, 'since the first snapshot of it, at most 24 hours'),
    leasedSeconds: described(id, 'the part of spanSeconds in which it was leased, as far as known'),
    utilizationPercent: percentages,
    memoryPercent: percentages,
    leasedPercent: described(percentages, 'share of the snapshots in which it was leased'),
  },
  'A GPU; 288 slots each, from the oldest to the one that lasts still. null: unknown.',
);
export interface GPUDay extends schema.Checked<typeof GPU_DAY> {}

const HISTORY = record(
  {
    time: described(time, 'now, in the last slot'),
    slotSeconds: described(number, 'how long each slot is'),
    machines: listOf(record({ host: text, gpus: listOf(GPU_DAY) })),
  },
  'The last 24 hours.',
);
export interface HistoryAnswer extends schema.Checked<typeof HISTORY> {}

const USAGE = record(
  {
    days: described(listOf(text), "such as 2026-01-31, in the server's time zone; the last one lasts still"),
    users: described(
      listOf(record({ user: text, uid: id, gpuHours: described(listOf(number), 'for each day') })),
      'who used GPUs, the largest sum first; none where the machine has no ledger of usage',
    ),
  },
  'The last 30 days.',
);
export interface UsageAnswer extends schema.Checked<typeof USAGE> {}

export const TRIALS = record(TRIAL_FIELDS);
const SWEEP = record(
  { job: described(id, "the job's number"), name: or(text), state: jobState, ...TRIAL_FIELDS },
  'A sweep in the background that compares its tasks.',
);
export interface Sweep extends schema.Checked<typeof SWEEP> {}

const ERROR = record(
  {
    error: record({
      code: described(
        text,
        'foreign-host, foreign-origin, wrong-token, read-only, not-found, too-many-viewers, internal, or a code of gpu-owner such as ERR_NO_DRIVER',
      ),
      message: text,
    }),
  },
  'Why there is no answer.',
);

/** By the names that the description of the API gives them. */
export const WEB_SHAPES: Readonly<Record<string, schema.Check>> = {
  StreamLine: STREAM_LINE,
  Error: ERROR,
  Usage: USAGE,
  History: HISTORY,
  Sweep: SWEEP,
};
