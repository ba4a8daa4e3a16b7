// The shape of each record that several commands print or read: one schema each. The types in lib/, the checks of other machines'
// answers, Python's types and docs/json.md come from it.
import { MAX_TIME, schema } from '../platform/index.ts';

const { Mismatch, described, flag, matching, objectSchema, shaped, shownText, whole } = schema;
type Check<T = unknown> = schema.Check<T>;
type Checked<C> = schema.Checked<C>;
type Fields = Readonly<Record<string, Check>>;

export const MAX_RECORDS = 10_000;
const MAX_ENTRIES = 1_000;
const MAX_TEXT_LENGTH = 2_000;
const MAX_INDEX = 9_999;

export const text = shownText(MAX_TEXT_LENGTH);
/** Text with words of other users: agents read it apart from all other fields. */
const foreign: Check<string> = shaped({ type: 'string', 'x-foreign': true }, (value, path) =>
  text(value, path),
);
/** A word that this version knows, or that of another one. */
export const word = <const T extends string = string>(...known: T[]): Check<T> =>
  shaped(
    { type: 'string', ...(known.length > 0 ? { enum: known } : {}) },
    matching(/^[a-z-]{1,20}$/) as Check<T>,
  );
const number = schema.amount();
const bytes = shaped({ type: 'integer' }, schema.amount());
const index = whole(MAX_INDEX);
export const id = whole();
const yes: Check<boolean> = shaped({ type: 'boolean' }, (value) => value === true);
const time: Check<string> = shaped({ type: 'string', format: 'date-time' }, (value, path) => {
  const moment = Date.parse(text(value, path));
  if (!(moment >= 0 && moment <= MAX_TIME)) throw new Mismatch(path);
  return new Date(moment).toISOString();
});
/** null, missing, or absurd: one value that makes no sense shall not hide the others. */
export const or = <T>(check: Check<T>) => schema.or(check, null);
/** As {@link or}, for a field that is left out where there is nothing to say. */
export const optional = <T>(check: Check<T>) => schema.or(check, undefined);
export const listOf = <T>(check: Check<T>, max = MAX_ENTRIES) => schema.listOf(check, max);
/** Missing: empty. */
const someOf = <T>(check: Check<T>): Check<T[]> =>
  shaped({ type: 'array', items: check.json }, (value, path) =>
    value === undefined ? [] : listOf(check)(value, path),
  );
export const record = <const F extends Fields>(
  fields: F,
  description?: string,
): Check<schema.CheckedFields<F>> =>
  shaped(
    { ...objectSchema(fields), ...(description === undefined ? {} : { description }) },
    schema.record(fields),
  );
/** A reference to one of {@link SHAPES}. */
const shape = <T>(name: string, check: Check<T>): Check<T> =>
  shaped({ $ref: `#/$defs/${name}` }, (value, path) => check(value, path));

const IDLE = record(
  {
    since: described(or(time), 'null: unknown, without an energy counter'),
    looks: described(id, 'in how many snapshots in succession it did nothing'),
  },
  'A leased GPU that does nothing.',
);
export interface Idle extends Checked<typeof IDLE> {}

const BOOKING = record(
  { id, user: foreign, group: or(foreign), from: time, until: time, note: or(foreign) },
  'The present booking of a GPU, else the next one.',
);
export interface BookingInfo extends Checked<typeof BOOKING> {}

const SUSPECT = record(
  {
    code: described(index, "as CUDA's driver API tells it; 9999: CUDA did not answer"),
    name: described(or(text), "CUDA's name of the code"),
    since: described(time, 'the first failure'),
    seenBy: described(someOf(foreign), 'the users whose claims failed'),
  },
  'CUDA failed on the GPU within the last hour; claims take it last.',
);
export interface SuspectInfo extends Checked<typeof SUSPECT> {}

/** A holder or waiter. */
const CLAIMANT = {
  user: foreign,
  uid: or(id),
  pid: or(id),
  host: or(foreign),
  command: or(foreign),
  since: or(time),
};

const HOLDER = {
  ...CLAIMANT,
  until: described(optional(time), 'when the time limit ends it; missing: it has none'),
  idleEnds: described(
    optional(time),
    'when it is ended as its GPUs do nothing, unless they are used by then',
  ),
  preemptible: described(optional(flag), "it gives way to requests that can't start otherwise"),
  suspended: described(optional(flag), 'its process is suspended, by Ctrl-Z for example, and keeps its GPUs'),
  job: described(optional(id), 'the number of a background job, among those of its user'),
  name: optional(foreign),
  note: optional(foreign),
  convention: described(schema.or(text, 'gpu-owner'), '`gpu-owner`, or the tool whose lock it is'),
  survivors: described(optional(id), "processes that are left after the command's end"),
  stranger: described(
    optional(flag),
    "a program that isn't gpu-owner has the lock: the other members are what the kernel tells",
  ),
} satisfies Fields;
const LEASE = record(
  {
    ...HOLDER,
    nested: described(optional(shape('Lease', record(HOLDER))), 'the holder by a claim inside of that job'),
  },
  'The holder of a GPU, as far as their record says: for people, not for decisions.',
);
export interface LeaseInfo extends Checked<typeof LEASE> {}

const SHARE = record(
  {
    ...HOLDER,
    bytes,
    usedBytes: described(or(bytes), "null: the driver doesn't tell, or the processes can't be told apart"),
  },
  "A part of a GPU's memory, and its holder.",
);
export interface Share extends Checked<typeof SHARE> {}

const MEMORY = { totalBytes: or(bytes), usedBytes: or(bytes), freeBytes: or(bytes) };

const INSTANCE = record(
  { uuid: text, name: text, gpuInstanceId: id, computeInstanceId: id, memory: record(MEMORY) },
  'An instance, which is a GPU of its own as well.',
);
export interface MIGInstance extends Checked<typeof INSTANCE> {}

const PROCESS = record(
  {
    pid: described(id, 'in a container it can be a PID of the host'),
    type: described(word('compute', 'graphics'), 'a process that computes and draws is listed twice'),
    usedBytes: or(bytes),
    smPercent: described(optional(number), 'its share of the multiprocessors; only top tells it'),
  },
  'A process that the driver lists.',
);
export interface GPUProcess extends Checked<typeof PROCESS> {}

/** Readings of the driver, the place of each GPU included. */
const READINGS = {
  index: described(index, "NVML's index; of an instance its GPU's"),
  instance: described(or(index), 'the number of a MIG instance on its GPU; null: a whole GPU'),
  uuid: described(text, "'': the driver gives no access to the GPU"),
  parent: described(or(text), "the UUID of a MIG instance's GPU"),
  name: text,
  pciBusId: or(text),
  memory: described(
    record({ ...MEMORY, reservedBytes: or(bytes) }),
    'in bytes; usedBytes leaves out what the driver reserves for itself',
  ),
  powerWatts: or(number),
  powerLimitWatts: or(number),
  utilizationPercent: or(number),
  temperatureCelsius: or(number),
  memoryRepairPending: described(
    or(flag),
    'whether spare memory takes the place of faulty memory at the next reset',
  ),
  computeMode: or(word('default', 'exclusive-thread', 'prohibited', 'exclusive-process')),
  displayActive: described(or(flag), 'an X server is attached'),
  migEnabled: described(or(flag), 'null for an instance'),
  migInstances: described(someOf(shape('MIGInstance', INSTANCE)), 'empty for an instance'),
  processes: described(or(listOf(shape('Process', PROCESS))), 'null: the driver lists none'),
};
export interface Readings extends schema.CheckedFields<typeof READINGS> {}

const GPU_FIELDS = {
  ...READINGS,
  state: described(
    word('free', 'leased', 'shared', 'busy', 'unavailable'),
    'leased: also booked by others; shared: parts of its memory are leased; busy: used without a lease; unavailable: unusable, or banned',
  ),
  reason: described(or(foreign), 'why it is not free, or suspect'),
  lease: or(shape('Lease', LEASE)),
  shares: described(schema.validOf(shape('Share', SHARE)), 'the parts of its memory that are leased'),
  idle: described(or(shape('Idle', IDLE)), 'null: it works, or this is unknown'),
  booking: or(shape('Booking', BOOKING)),
  suspect: or(shape('Suspect', SUSPECT)),
};
export const GPU = record(
  GPU_FIELDS,
  'A GPU or MIG instance, as in `gpu-owner status --json`. null is unknown.',
);
export interface ShownGPU extends Checked<typeof GPU> {}

export const REQUEST = record(
  {
    position: described(id, '1 is served first'),
    count: described(index, 'how many GPUs'),
    memory: described(or(text), "the share of each GPU, such as '20 GiB' or '25 %'; null: whole GPUs"),
    class: described(
      schema.or(word('urgent', 'normal', 'preemptible'), 'normal'),
      'urgent requests are served before all others, preemptible ones after all others',
    ),
    ...CLAIMANT,
    job: described(or(id), 'the number of a background job, among those of its user'),
    name: or(foreign),
    note: or(foreign),
    stopped: described(yes, 'suspended: skipped until it resumes'),
    latestStart: described(
      or(time),
      'when it gets its GPUs at the latest, by time limits; null: unknown, or it stops waiting before',
    ),
    waitUntil: described(or(time), 'when it stops waiting; null: never'),
    why: described(schema.or(foreign, ''), 'why it waits, in one sentence'),
    details: described(
      someOf(foreign),
      'the reasons behind it: its turn, bookings, with which limit it could start',
    ),
    waitingFor: described(
      someOf(record({ index, instance: schema.optional(or(index)), uuid: text, reason: foreign })),
      'the GPUs that would do, each with what is in the way',
    ),
  },
  'A request in the wait queue, as in `gpu-owner queue --json`.',
);
export interface QueueEntry extends Checked<typeof REQUEST> {}

export const jobState = word('waiting', 'moving', 'running', 'completed', 'failed', 'cancelled', 'lost');
export const JOB_FIELDS = {
  id: described(or(id), 'null: a `gpu-owner run` in a terminal'),
  name: or(text),
  state: described(
    jobState,
    'moving: between machines, while it waits; cancelled: by its user, or as a job failed that it was to follow; lost: its processes are gone, and have told no exit code',
  ),
  exitCode: described(or(id), 'as `run` returns it; null: it has not ended, or it is unknown'),
  reason: described(or(foreign), 'why it waits, was cancelled or never started, or that it is suspended'),
  position: described(or(id), 'in the wait queue, from 1'),
  count: described(index, 'how many GPUs it wants'),
  gpus: described(
    someOf(record({ index, instance: schema.optional(or(index)), uuid: text })),
    'that it has or had: of more than about 50 only the first',
  ),
  command: text,
  note: or(text),
  user: text,
  pid: described(or(id), 'its first process, as long as that lives'),
  submitted: or(time),
  started: or(time),
  ended: or(time),
  until: described(or(time), 'when its time limit ends it'),
  idle: described(or(shape('Idle', IDLE)), 'null: one of its GPUs works, or this is unknown'),
  after: described(someOf(id), 'the jobs that must have ended before'),
  output: described(or(text), 'the file with its output'),
  preempted: described(schema.or(index, 0), 'how often it gave way to another request'),
  retried: described(schema.or(index, 0), 'how often it had failed, and was started again'),
  ran: described(schema.or(index, 0), 'how many seconds it had run by then'),
  array: described(or(record({ id, index })), 'the array that it is a part of, and its number there'),
  parts: described(
    or(text),
    'the parts of an array, as `submit --array` takes them: 0-99%4; null: it is none',
  ),
  progress: described(or(record({ done: id, total: id })), 'tasks of a sweep, or parts of an array'),
  directory: described(
    optional(text),
    'where it runs; here and below: only if it is asked for by its number',
  ),
  limit: described(schema.optional(or(number)), 'the time limit, in seconds'),
  moved: described(optional(flag), 'it was cancelled here, as it has moved to another machine'),
  host: described(optional(text), 'the machine; missing: this one; any: it moves while it waits'),
};
export const JOB = record(JOB_FIELDS, 'A job of the user who asks, as in `gpu-owner jobs --json`.');
export interface Job extends Checked<typeof JOB> {}

const INTRUDER_FIELDS = {
  uuid: described(text, "the GPU's"),
  pid: id,
  name: or(foreign),
  user: or(foreign),
  uid: or(id),
  usedBytes: or(bytes),
};
const INTRUDER = record(INTRUDER_FIELDS, "A process that computes on a GPU which its user hasn't leased.");

const LISTED_PROCESS = record({
  ...INTRUDER_FIELDS,
  type: word('compute', 'graphics'),
  command: or(foreign),
  smPercent: or(number),
  isIntruder: described(yes, 'it is among the intruders'),
});
export interface ShownProcess extends Checked<typeof LISTED_PROCESS> {}

const MACHINE_FIELDS = {
  time: described(time, 'when the snapshot was taken'),
  gpus: listOf(shape('GPU', GPU)),
  queue: described(listOf(shape('Request', REQUEST), MAX_RECORDS), 'the first 200'),
  waiting: described(id, 'how many requests wait'),
  intruders: listOf(shape('Intruder', INTRUDER)),
};
const MACHINE = record(MACHINE_FIELDS, 'A machine at one moment.');
export const SNAPSHOT = record({
  ...MACHINE_FIELDS,
  processes: optional(listOf(LISTED_PROCESS)),
  jobs: optional(listOf(shape('Job', JOB), MAX_RECORDS)),
  problem: described(or(text), 'why there is nothing newer; null: it is current'),
});
/** A machine at one moment, as `top --json` prints it. */
export interface Snapshot extends Checked<typeof SNAPSHOT> {}

const SUM = record(
  {
    key: described(text, 'the user, group, GPU, day or job'),
    leases: described(id, 'how many there were, at least in part'),
    gpuHours: number,
    share: described(
      or(number),
      "the part of the time of the machine's GPUs, of the GPU, or of the day, from 0 to 1",
    ),
    waitedSeconds: described(record({ p50: number, p90: number }), 'how long the leases had been waited for'),
    idleShare: described(or(number), 'the part of the time in which the GPUs did nothing'),
    energyKWh: or(number),
  },
  'The leases with one key. Times of GPUs count by the part of the card.',
);
export interface Sum extends Checked<typeof SUM> {}

export const REPORT = record(
  {
    since: time,
    until: time,
    by: schema.among(['user', 'group', 'gpu', 'day', 'job']),
    gpus: described(or(index), 'how many the machine has'),
    rows: listOf(shape('Sum', SUM), MAX_RECORDS),
    longest: described(
      listOf(
        record({ user: text, job: text, gpus: listOf(index), gpuHours: number, since: time, exit: or(id) }),
      ),
      'the leases that took the most GPU hours',
    ),
    skipped: described(id, 'lines and files of the ledger that make no sense'),
  },
  'A report, as in `gpu-owner report --json`.',
);
export interface Report extends Checked<typeof REPORT> {}

const BOOKING_ENTRY = record(
  {
    id,
    user: foreign,
    group: or(foreign),
    gpus: described(id, 'how many'),
    devices: described(
      listOf(record({ index: or(index), uuid: text })),
      "without an index: the driver doesn't show it now",
    ),
    from: time,
    until: time,
    note: or(foreign),
  },
  'A booking, as in `gpu-owner bookings --json`.',
);
export interface BookingEntry extends Checked<typeof BOOKING_ENTRY> {}

const PLACE = record(
  {
    index: described(index, "NVML's index"),
    uuid: text,
    cpus: described(or(text), 'the processors near it as the kernel writes them, 0-31,64-95'),
    numaNode: described(or(id), 'of these processors; null: unknown, or there are several'),
    nvlinks: or(record({ active: id, inactive: id })),
  },
  'The place of a GPU in the machine.',
);
export interface Place extends Checked<typeof PLACE> {}

const LINK = record(
  {
    a: described(index, "NVML's index"),
    b: index,
    kind: described(
      or(word('nvlink', 'nvswitch', 'pcie-switch', 'pcie-switches', 'host-bridge', 'numa', 'system')),
      'the closest connection',
    ),
    links: described(or(id), 'active NVLinks between the two; null: none'),
  },
  'The connection of two GPUs.',
);
export interface Link extends Checked<typeof LINK> {}

const TOPOLOGY = record(
  { gpus: listOf(shape('Place', PLACE)), links: described(listOf(shape('Link', LINK)), 'each pair once') },
  'The connections of all GPUs, as in `gpu-owner status --topology --json`.',
);
export interface MachineTopology extends Checked<typeof TOPOLOGY> {}

/** What their JSON Schemas are made of. */
export interface ShapeSchema {
  type?: string | string[];
  enum?: (string | null)[];
  anyOf?: ShapeSchema[];
  $ref?: string;
  items?: ShapeSchema;
  required?: string[];
  properties?: Record<string, ShapeSchema>;
  description?: string;
  /** Text with words of other users. */
  'x-foreign'?: true;
}

/** All of them, by the names that Python and docs/json.md give them. */
export const SHAPES: Readonly<Record<string, Check>> = {
  GPU,
  Process: PROCESS,
  MIGInstance: INSTANCE,
  Lease: LEASE,
  Share: SHARE,
  Idle: IDLE,
  Booking: BOOKING,
  Suspect: SUSPECT,
  Request: REQUEST,
  Job: JOB,
  Intruder: INTRUDER,
  Snapshot: MACHINE,
  BookingEntry: BOOKING_ENTRY,
  Report: REPORT,
  Sum: SUM,
  Topology: TOPOLOGY,
  Place: PLACE,
  Link: LINK,
};
