// The shapes of answers, each in one place: of these checks the answers of other machines are read, and of their descriptions web's OpenAPI
// document is made. Answers of other machines are foreign text, of other versions of gpu-owner: missing fields are null, unknown ones are
// left out.
import type { GPUStatus } from '../claims/index.ts';
import type { Job, PlaceState } from '../jobs/index.ts';
import { isoTime, MAX_TIME, sanitize, schema } from '../platform/index.ts';
import type { Family } from '../prometheus/index.ts';
import type { QueueEntry } from '../status/index.ts';
import { KINDS, type Report, type Sum } from '../usage/index.ts';

const { Mismatch, described, flag, matching, objectSchema, shaped, shownText, whole } = schema;
type Check<T = unknown> = schema.Check<T>;

const MAX_RECORDS = 10_000;
const MAX_ENTRIES = 1_000;
const MAX_TEXT_LENGTH = 2_000;
const MAX_INDEX = 9_999;

type Fields = Readonly<Record<string, Check>>;

const text = shownText(MAX_TEXT_LENGTH);
/** A word that this version knows, or that of another one. */
const word = (...known: string[]): Check<string> =>
  shaped({ type: 'string', ...(known.length > 0 ? { enum: known } : {}) }, matching(/^[a-z-]{1,20}$/));
const number = schema.amount();
const bytes = shaped({ type: 'integer' }, schema.amount());
const index = whole(MAX_INDEX);
const id = whole();
const yes: Check<boolean> = shaped({ type: 'boolean' }, (value) => value === true);
const time: Check<string> = shaped({ type: 'string', format: 'date-time' }, (value, path) => {
  const moment = Date.parse(text(value, path));
  if (!(moment >= 0 && moment <= MAX_TIME)) throw new Mismatch(path);
  return new Date(moment).toISOString();
});
/** null, missing in an older version, or absurd: one value that makes no sense shall not hide the others. */
const or = <T>(check: Check<T>) => schema.or(check, null);
/** As {@link or}, for a field that is left out where there is nothing to say. */
const optional = <T>(check: Check<T>) => schema.or(check, undefined);
const listOf = <T>(check: Check<T>, max = MAX_ENTRIES) => schema.listOf(check, max);
/** Missing in an older version. */
const someOf = <T>(check: Check<T>): Check<T[]> =>
  shaped({ type: 'array', items: check.json }, (value, path) =>
    value === undefined ? [] : listOf(check)(value, path),
  );
const record = (fields: Fields, description?: string): Check<object> =>
  shaped(
    { ...objectSchema(fields), ...(description === undefined ? {} : { description }) },
    schema.record(fields),
  );
/** A reference to one of {@link SHAPES}. */
const shape = (name: string, check: Check<object>): Check<object> =>
  shaped({ $ref: `#/components/schemas/${name}` }, (value, path) => check(value, path));

const IDLE = record(
  { since: described(or(time), 'null: unknown, without an energy counter'), looks: id },
  'A leased GPU that does nothing.',
);
const BOOKING = record(
  { id, user: text, group: or(text), from: time, until: time, note: or(text) },
  'The present booking of a GPU, else the next one.',
);
const SUSPECT = record(
  {
    code: described(index, "as CUDA's driver API tells it"),
    name: described(or(text), "CUDA's name of the code"),
    since: time,
    seenBy: described(someOf(text), 'the users whose claims failed'),
  },
  'CUDA failed on the GPU within the last hour; claims take it last.',
);

const HOLDER: Fields = {
  user: text,
  uid: or(id),
  pid: or(id),
  host: or(text),
  command: or(text),
  since: or(time),
  until: described(optional(time), 'when the time limit ends it'),
  idleEnds: described(
    optional(time),
    'when it is ended as its GPUs do nothing, unless they are used by then',
  ),
  preemptible: described(optional(flag), "it gives way to requests that can't start otherwise"),
  askedToGiveWay: described(optional(time), "when it was asked to give way, and didn't within its grace"),
  suspended: described(optional(flag), 'its process is suspended'),
  job: described(optional(id), 'the number of a background job'),
  name: optional(text),
  note: optional(text),
  convention: described(schema.or(text, 'gpu-owner'), 'gpu-owner, or the tool whose lock it is'),
  survivors: described(optional(id), "processes that are left after the command's end"),
  stranger: described(optional(flag), "the holder hasn't written who they are"),
};
const LEASE = record(
  { ...HOLDER, nested: optional(shape('Lease', record(HOLDER))) },
  'Who has leased a GPU, as far as their record says.',
);
const SHARE = record(
  {
    ...HOLDER,
    bytes,
    usedBytes: described(or(bytes), "null: the driver doesn't tell, or the processes can't be told apart"),
  },
  "A part of a GPU's memory, and who has it.",
);

const MEMORY = { totalBytes: or(bytes), usedBytes: or(bytes), freeBytes: or(bytes) };

/** Fields of a snapshot that `status --json` doesn't have. */
type Unprinted = 'health' | 'healthReason' | 'energyJoules' | 'memoryErrors';

const GPU = {
  index: described(index, "NVML's index; of an instance its GPU's"),
  instance: described(or(index), 'the number of a MIG instance on its GPU; null: a whole GPU'),
  uuid: text,
  parent: described(or(text), "the UUID of a MIG instance's GPU"),
  name: text,
  pciBusId: or(text),
  state: word('free', 'leased', 'shared', 'busy', 'unavailable'),
  reason: described(or(text), 'why it is not free, or suspect'),
  memory: record({ ...MEMORY, reservedBytes: or(bytes) }, 'Bytes.'),
  powerWatts: or(number),
  powerLimitWatts: or(number),
  utilizationPercent: or(number),
  temperatureCelsius: or(number),
  memoryRepairPending: described(
    or(flag),
    'whether spare memory takes the place of faulty memory at the next reset',
  ),
  computeMode: or(word('default', 'exclusive-thread', 'prohibited', 'exclusive-process')),
  displayActive: or(flag),
  migEnabled: or(flag),
  migInstances: someOf(
    record(
      { uuid: text, name: text, gpuInstanceId: id, computeInstanceId: id, memory: record(MEMORY, 'Bytes.') },
      'An instance, which is a GPU of its own as well.',
    ),
  ),
  processes: described(
    or(
      listOf(
        record(
          {
            pid: id,
            type: word('compute', 'graphics'),
            usedBytes: or(bytes),
            smPercent: described(
              optional(number),
              'its share of the multiprocessors; only other hosts tell it',
            ),
          },
          'A process that the driver lists.',
        ),
      ),
    ),
    'null: the driver lists none',
  ),
  lease: or(shape('Lease', LEASE)),
  shares: described(schema.validOf(shape('Share', SHARE)), 'the parts of its memory that are leased'),
  idle: or(shape('Idle', IDLE)),
  booking: or(shape('Booking', BOOKING)),
  suspect: or(shape('Suspect', SUSPECT)),
} satisfies Record<Exclude<keyof GPUStatus, Unprinted>, Check>;

const QUEUE = {
  position: id,
  count: described(index, 'how many GPUs'),
  memory: described(or(text), "the share of each GPU, such as '20 GiB' or '25 %'; null: whole GPUs"),
  class: described(
    schema.or(word('urgent', 'normal', 'preemptible'), 'normal'),
    'urgent requests are served before all others, preemptible ones after all others',
  ),
  user: text,
  uid: or(id),
  pid: or(id),
  host: or(text),
  command: or(text),
  since: or(time),
  job: or(id),
  name: or(text),
  note: or(text),
  stopped: described(yes, 'suspended: skipped until it resumes'),
  latestStart: described(or(time), 'when it starts at the latest'),
  waitUntil: described(or(time), 'when it stops waiting'),
  reason: described(or(text), 'why it has this position, where several users wait'),
  waitingFor: someOf(
    record({ index, instance: schema.optional(or(index)), uuid: text, reason: text }, 'A GPU that would do.'),
  ),
} satisfies Record<keyof QueueEntry, Check>;

const JOB = {
  id: described(or(id), 'null: a `gpu-owner run` that somebody waits for'),
  name: or(text),
  state: word('waiting', 'running', 'completed', 'failed', 'cancelled', 'lost'),
  exitCode: or(id),
  reason: or(text),
  position: or(id),
  count: index,
  gpus: someOf(
    record({ index, instance: schema.optional(or(index)), uuid: text }, 'A GPU that it has or had.'),
  ),
  command: text,
  note: or(text),
  user: text,
  pid: or(id),
  submitted: or(time),
  started: or(time),
  ended: or(time),
  until: or(time),
  idle: or(shape('Idle', IDLE)),
  after: someOf(id),
  output: or(text),
  preempted: described(schema.or(index, 0), 'How often it gave way to another request.'),
  retried: described(schema.or(index, 0), 'How often it had failed, and was started anew.'),
  ran: described(schema.or(index, 0), 'How many seconds it had run by then.'),
  array: or(record({ id, index }, 'The array that it is a part of, and its number there.')),
  parts: described(
    or(text),
    'The parts of an array, as `submit --array` takes them: 0-99%4. null: it is none.',
  ),
  progress: or(record({ done: id, total: id }, 'Tasks of a sweep, or parts of an array.')),
} satisfies Record<keyof Job, Check>;

/** Fields that only a job that is asked for by its number has, or one that is of another host than the asked one. */
const DETAILS: Fields = {
  directory: optional(text),
  limit: schema.optional(or(number)),
  environment: optional(someOf(text)),
  host: optional(text),
};

const INTRUDER = record(
  {
    uuid: described(text, "the GPU's"),
    pid: id,
    name: or(text),
    user: or(text),
    uid: or(id),
    usedBytes: or(bytes),
  },
  "A process that computes on a GPU which its user hasn't leased.",
);

/** Objects that several answers have, by their names in web's API. */
export const SHAPES: Readonly<Record<string, Check>> = {
  GPU: record(GPU, 'A GPU or MIG instance, as in `gpu-owner status --json`. null is unknown.'),
  Suspect: SUSPECT,
  Booking: BOOKING,
  Lease: LEASE,
  Share: SHARE,
  Idle: IDLE,
  Request: record(QUEUE, 'A request in the wait queue, as in `gpu-owner queue --json`.'),
  Job: record(JOB, "A job of the server's user, as in `gpu-owner jobs --json`."),
  Intruder: INTRUDER,
};

const OUTPUT = {
  id,
  at: id,
  size: id,
  bytes: matching(/^[A-Za-z0-9+/]*={0,2}$/),
  dropped: id,
  isOver: flag,
} satisfies Record<keyof OutputPiece, Check>;

const labels: Check = (value, path) => {
  const given = Object.entries(schema.object(value, path));
  const isRight = ([name, each]: [string, unknown]) =>
    /^(?!__)[a-z_]{1,40}$/.test(name) && name !== 'host' && typeof each === 'string';
  if (!given.every(isRight)) throw new Mismatch(path);
  return Object.fromEntries(given.map(([name, each]) => [name, text(each, path)]));
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

const SNAPSHOT = record({
  time,
  gpus: listOf(record(GPU)),
  queue: listOf(record(QUEUE), MAX_RECORDS),
  waiting: id,
  intruders: listOf(INTRUDER),
  processes: optional(
    listOf(
      record({
        uuid: text,
        pid: id,
        name: or(text),
        user: or(text),
        uid: or(id),
        usedBytes: or(number),
        type: word(),
        command: or(text),
        smPercent: or(number),
        isIntruder: yes,
      }),
    ),
  ),
  jobs: optional(listOf(record(JOB), MAX_RECORDS)),
  problem: or(text),
});

/** A machine at one moment, as `top --json` prints it there. */
export interface RemoteSnapshot {
  time: string;
  gpus: GPUStatus[];
  queue: QueueEntry[];
  waiting: number;
  intruders: {
    uuid: string;
    pid: number;
    name: string | null;
    user: string | null;
    uid: number | null;
    usedBytes: number | null;
  }[];
  /** The jobs of the user there; missing: an older version doesn't tell. */
  jobs?: Job[];
  /** Why there is nothing newer there; null: it is current. */
  problem: string | null;
}

const SUM = {
  key: text,
  leases: id,
  gpuHours: number,
  share: or(number),
  waitedSeconds: record({ p50: number, p90: number }),
  idleShare: or(number),
  energyKWh: or(number),
} satisfies Record<keyof Sum, Check>;

const REPORT = {
  since: time,
  until: time,
  by: schema.among(KINDS),
  gpus: or(index),
  rows: listOf(record(SUM), MAX_RECORDS),
  longest: listOf(
    record({ user: text, job: text, gpus: listOf(index), gpuHours: number, since: time, exit: or(id) }),
  ),
  skipped: id,
} satisfies Record<keyof Report, Check>;

const BOOKING_ENTRY = {
  id,
  user: text,
  group: or(text),
  gpus: id,
  devices: listOf(record({ index: or(index), uuid: text })),
  from: time,
  until: time,
  note: or(text),
} satisfies Record<keyof BookingEntry, Check>;

/** A booking, as `bookings --json` prints it. */
export interface BookingEntry {
  id: number;
  user: string;
  group: string | null;
  /** How many. */
  gpus: number;
  /** Without an index: the driver doesn't show it now. */
  devices: { index: number | null; uuid: string }[];
  from: string;
  until: string;
  note: string | null;
}

/** Whether it is what `status --json` prints: a key may run nothing else. */
function isOfGPUs(value: unknown): value is object[] {
  const [first] = Array.isArray(value) ? value : [];
  return typeof first === 'object' && first !== null && 'uuid' in first;
}

function snapshotOf(gpus: object[]): object {
  return { time: isoTime(), gpus, queue: [], waiting: 0, intruders: [], problem: null };
}

const PLACE = {
  boot: text,
  uid: or(id),
  id: or(id),
  state: or(word()),
  decision: or(text),
  isOver: flag,
} satisfies Record<keyof PlaceState, Check>;

/** A piece of a job's output, as `logs --over-ssh` prints it. */
export interface OutputPiece {
  /** The job's number. */
  id: number;
  /** Where the next piece begins. */
  at: number;
  /** The size of the whole output, in bytes. */
  size: number;
  /** In base64. */
  bytes: string;
  /** So many bytes before were not kept. */
  dropped: number;
  /** Whether the job has ended, and this is the last piece. */
  isOver: boolean;
}

/** Records by what a host was asked for. */
export interface Records {
  output: OutputPiece;
  places: PlaceState;
  gpus: GPUStatus;
  queue: QueueEntry;
  jobs: Job;
  metrics: Family;
  machines: RemoteSnapshot;
  /** One. */
  report: Report;
  bookings: BookingEntry;
}

const CHECKS: Readonly<Record<keyof Records, Check>> = {
  gpus: listOf(record(GPU)),
  queue: listOf(record(QUEUE), MAX_RECORDS),
  jobs: listOf(record({ ...JOB, ...DETAILS }), MAX_RECORDS),
  output: listOf(record(OUTPUT), 1),
  places: listOf(record(PLACE), 1),
  metrics: eachOnce(listOf(record(METRIC)), ({ name }) => name),
  report: (value, path) => [record(REPORT)(value, path)],
  bookings: listOf(record(BOOKING_ENTRY), MAX_RECORDS),
  machines: (value, path) => listOf(SNAPSHOT)(isOfGPUs(value) ? [snapshotOf(value)] : value, path),
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
