// Answers of other machines are foreign text: each record is checked before anything is shown of it. Machines have other
// versions of gpu-owner, so missing fields are null, and fields that are unknown here stay.
import type { GPUStatus, QueueEntry } from '../claims/index.ts';
import type { Job, PlaceState } from '../jobs/index.ts';
import { isoTime, MAX_TIME, sanitize, schema } from '../platform/index.ts';
import type { Family } from '../prometheus/index.ts';
import { KINDS, type Report, type Sum } from '../usage/index.ts';

const { Mismatch, amount, flag, matching, shownText, whole } = schema;
type Check<T = unknown> = schema.Check<T>;

const MAX_RECORDS = 10_000;
const MAX_ENTRIES = 1_000;
const MAX_DEPTH = 8;
const MAX_TEXT_LENGTH = 2_000;
const MAX_INDEX = 9_999;

type Fields = Readonly<Record<string, Check>>;

const text = shownText(MAX_TEXT_LENGTH);
const word = matching(/^[a-z-]{1,20}$/);
const number = amount();
const index = whole(MAX_INDEX);
const id = whole();
const yes: Check<boolean> = (value) => value === true;
const time: Check<string> = (value, path) => {
  const moment = Date.parse(text(value, path));
  if (!(moment >= 0 && moment <= MAX_TIME)) throw new Mismatch(path);
  return new Date(moment).toISOString();
};
/** null, missing in an older version, or absurd: one value that makes no sense shall not hide the others. */
const or = <T>(check: Check<T>) => schema.or(check, null);
/** As {@link or}, for a field that is left out where there is nothing to say. */
const optional = <T>(check: Check<T>) => schema.or(check, undefined);
const listOf = <T>(check: Check<T>, max = MAX_ENTRIES) => schema.listOf(check, max);
/** Missing in an older version. */
const someOf =
  <T>(check: Check<T>): Check<T[]> =>
  (value, path) =>
    value === undefined ? [] : listOf(check)(value, path);
/** An object with these fields. Fields that are unknown here stay, harmless. */
const record =
  (fields: Fields): Check<object> =>
  (value, path) => {
    const given = harmless(schema.object(value, path), path) as object;
    const checked = schema.record(fields)(value, path);
    const all = Object.entries({ ...given, ...checked });
    return Object.fromEntries(
      all.filter(([key]) => Object.hasOwn(checked, key) || !Object.hasOwn(fields, key)),
    );
  };

/** JSON of unknown shape, made harmless. */
function harmless(value: unknown, path: string, depth = 0): unknown {
  if (typeof value === 'string') return sanitize(value, MAX_TEXT_LENGTH);
  if (typeof value !== 'object' || value === null) return value;
  if (depth > MAX_DEPTH) throw new Mismatch(path);
  if (Array.isArray(value)) {
    if (value.length > MAX_RECORDS) throw new Mismatch(path);
    return value.map((entry) => harmless(entry, path, depth + 1));
  }
  const entries = Object.entries(value).filter(([key]) => /^\w{1,64}$/.test(key) && key !== '__proto__');
  if (entries.length > MAX_ENTRIES) throw new Mismatch(path);
  return Object.fromEntries(entries.map(([key, each]) => [key, harmless(each, `${path}.${key}`, depth + 1)]));
}

const IDLE = or(record({ since: or(time), looks: id }));
const BOOKING = or(record({ id, user: text, group: or(text), from: time, until: time, note: or(text) }));
const SUSPECT = or(record({ code: index, name: or(text), since: time, seenBy: someOf(text) }));

const LEASE: Fields = {
  user: text,
  uid: or(id),
  pid: or(id),
  command: or(text),
  since: or(time),
  until: optional(time),
  idleEnds: optional(time),
  preemptible: optional(schema.flag),
  suspended: optional(schema.flag),
  job: optional(id),
  name: optional(text),
  note: optional(text),
};

const SHARE = record({ ...LEASE, bytes: number, usedBytes: or(number) });

/** Fields for which {@link harmless} is enough; `SNAPSHOT` checks some of them. */
type Unchecked =
  | 'health'
  | 'healthReason'
  | 'energyJoules'
  | 'memoryErrors'
  | 'computeMode'
  | 'displayActive'
  | 'migEnabled'
  | 'migInstances'
  | 'processes'
  | 'lease';

const GPU = {
  index,
  instance: or(index),
  uuid: text,
  parent: or(text),
  name: text,
  pciBusId: or(text),
  state: word,
  reason: or(text),
  memory: record({
    totalBytes: or(number),
    usedBytes: or(number),
    freeBytes: or(number),
    reservedBytes: or(number),
  }),
  powerWatts: or(number),
  powerLimitWatts: or(number),
  utilizationPercent: or(number),
  temperatureCelsius: or(number),
  memoryRepairPending: or(flag),
  shares: schema.validOf(SHARE),
  idle: IDLE,
  booking: BOOKING,
  suspect: SUSPECT,
} satisfies Record<Exclude<keyof GPUStatus, Unchecked>, Check>;

const QUEUE = {
  position: id,
  count: index,
  memory: (value, path) => (value === undefined ? null : or(text)(value, path)),
  class: (value, path) => (value === undefined ? 'normal' : word(value, path)),
  user: text,
  uid: or(id),
  pid: or(id),
  host: or(text),
  command: or(text),
  since: or(time),
  job: or(id),
  name: or(text),
  note: or(text),
  stopped: yes,
  latestStart: or(time),
  waitUntil: or(time),
  reason: or(text),
  waitingFor: someOf(record({ index, instance: or(index), uuid: text, reason: text })),
} satisfies Record<keyof QueueEntry, Check>;

const JOB = {
  id: or(id),
  name: or(text),
  state: word,
  exitCode: or(id),
  reason: or(text),
  position: or(id),
  count: index,
  gpus: someOf(record({ index, instance: or(index), uuid: text })),
  command: text,
  note: or(text),
  user: text,
  pid: or(id),
  submitted: or(time),
  started: or(time),
  ended: or(time),
  until: or(time),
  idle: IDLE,
  after: someOf(id),
  output: or(text),
  preempted: or(index),
  ran: or(index),
  array: or(record({ id, index })),
  parts: or(text),
  progress: or(record({ done: id, total: id })),
} satisfies Record<keyof Job, Check>;

/** Fields that only a job that is asked for by its number has. */
const DETAILS: Fields = {
  directory: optional(text),
  limit: schema.optional(or(number)),
  environment: optional(someOf(text)),
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
  const given = Object.entries(record({})(value, path) as object);
  const isRight = ([name, each]: [string, unknown]) =>
    /^(?!__)[a-z_]{1,40}$/.test(name) && name !== 'host' && typeof each === 'string';
  if (!given.every(isRight)) throw new Mismatch(path);
  return Object.fromEntries(given);
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
  gpus: listOf(
    record({
      ...GPU,
      migEnabled: yes,
      migInstances: someOf(record({})),
      lease: or(record({ ...LEASE, nested: optional(record(LEASE)) })),
    }),
  ),
  queue: listOf(record(QUEUE), MAX_RECORDS),
  waiting: id,
  intruders: listOf(
    record({ uuid: text, pid: id, name: or(text), user: or(text), uid: or(id), usedBytes: or(number) }),
  ),
  processes: optional(
    listOf(
      record({
        uuid: text,
        pid: id,
        name: or(text),
        user: or(text),
        uid: or(id),
        usedBytes: or(number),
        type: word,
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
  state: or(word),
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
    return 'it is not JSON';
  }
  try {
    return CHECKS[kind](value, kind) as Records[Kind][];
  } catch (error) {
    if (!(error instanceof Mismatch)) throw error;
    return `${sanitize(error.message)} has an impossible value`;
  }
}
