// Whether a GPU does nothing, and since when. One look at 0 % says little: a program that loads data computes again a moment
// later. So each look writes down the time and the GPU's energy counter, and the next one knows the mean power in between.
// Anybody can write there: the notes inform people, and nothing is decided by them.
import { type GPU, isInstance } from '../gpus/index.ts';
import { native } from '../native.ts';
import { bootId, bootMilliseconds, isoTime, schema } from '../platform/index.ts';
import type { Idle } from '../shapes/index.ts';
import { encodeRecord, type LockDirectory, readRecord } from './locks/index.ts';

/** As it is written down. */
interface Look {
  boot: string;
  /** On the clock of `bootMilliseconds()`. */
  at: number;
  energy: number | null;
  /** On the same clock; null: it worked, or it isn't known. */
  since: number | null;
  looks: number;
  /** Without a context on the GPU, and with one. */
  free: Rest;
  used: Rest;
}

/** The power of a GPU that does nothing, in W, from mean powers between two looks. null: none yet. */
interface Rest {
  /** The lowest on which two looks in succession agreed: the counter may be late at a single one, for example on a busy machine. */
  lowest: number | null;
  /** A lower one of the look before. */
  below: number | null;
}

/** Shorter means say little, in ms: counters are renewed some ten times a second. */
const MIN_SPAN_MS = 1_000;
/** A guess where it isn't known yet what the card takes when it does nothing. */
const MAX_OF_LIMIT = 0.25;
const MAX_OF_LOWEST = 1.3;
const FLUCTUATION_WATTS = 5;
const UNKNOWN: Rest = { lowest: null, below: null };

/** Has snapshots tell what {@link noteLooks} needs. */
export function askForEnergy(): void {
  native().driverReadEnergy(true);
}

/** Writes down what GPUs did since they were last looked at. @returns those that did nothing, by UUID */
export function noteLooks(directory: LockDirectory | null, gpus: readonly GPU[]): Map<string, Idle> {
  const idle = new Map<string, Idle>();
  if (directory === null) return idle;
  for (const gpu of gpus) {
    if (isInstance(gpu) || gpu.uuid === '' || gpu.health !== 'ok' || gpu.utilizationPercent === null)
      continue;
    const look = noteLook(directory, gpu, gpu.utilizationPercent);
    if (look !== null) idle.set(gpu.uuid, look);
  }
  return idle;
}

/** A GPU's idle time as it was written down; null: nothing says that it is idle. */
export function readIdle(directory: LockDirectory, uuid: string): Idle | null {
  for (const descriptor of directory.filesNamed(fileName(uuid), [directory.path])) {
    const look = readLook(descriptor);
    return look === null ? null : idleOf(look);
  }
  return null;
}

function noteLook(directory: LockDirectory, gpu: GPU, utilization: number): Idle | null {
  const file = directory.openIfPossible(fileName(gpu.uuid));
  if (file < 0) return readIdle(directory, gpu.uuid);
  try {
    const before = readLook(file);
    const at = bootMilliseconds();
    const energy = gpu.energyJoules ?? null;
    const isTooSoon = before !== null && at - before.at < MIN_SPAN_MS && utilization === 0;
    // Not asked for this time: what is known of it stays.
    const isLess = energy === null && before !== null && before.energy !== null;
    if (before !== null && (isTooSoon || isLess)) return idleOf(before);
    const isUsed = (gpu.processes ?? []).some(({ type }) => type === 'compute');
    const look = nextLook(before, { at, energy, utilization, isUsed, limit: gpu.powerLimitWatts });
    native().fileWriteBlock(file, encodeRecord(look));
    return idleOf(look);
  } finally {
    native().fileClose(file);
  }
}

/** A GPU at one moment: its energy counter in J, the limit of its power in W. */
interface Seen {
  at: number;
  energy: number | null;
  utilization: number;
  /** Whether a process has a context on it. */
  isUsed: boolean;
  limit: number | null;
}

/** Decides whether a GPU has done nothing since the look before. */
export function nextLook(before: Look | null, { at, energy, utilization, isUsed, limit }: Seen): Look {
  const { free = UNKNOWN, used: inUse = UNKNOWN } = before ?? {};
  const look: Look = { boot: bootId(), at, energy, since: null, looks: 0, free, used: inUse };
  if (utilization > 0) return look;
  const used = before === null || before.energy === null || energy === null ? -1 : energy - before.energy;
  look.looks = (before?.looks ?? 0) + 1;
  // The counter restarts with the driver.
  if (before === null || used < 0 || at <= before.at) return look;
  const watts = (used * 1_000) / (at - before.at);
  const rest = isUsed ? inUse : free;
  const known = rest.lowest;
  const bounds = [
    ...(known === null ? [] : [known * MAX_OF_LOWEST + FLUCTUATION_WATTS]),
    ...(limit === null ? [] : [limit * MAX_OF_LIMIT]),
  ];
  if (bounds.length === 0 || watts > Math.min(...bounds)) return { ...look, looks: 1 };
  look[isUsed ? 'used' : 'free'] = learn(rest, watts);
  look.since = before.since ?? before.at;
  return look;
}

function learn({ lowest, below }: Rest, watts: number): Rest {
  if (lowest !== null && watts >= lowest) return { lowest, below: null };
  const isAgreed = below !== null && Math.abs(watts - below) <= FLUCTUATION_WATTS;
  return isAgreed ? { lowest: Math.max(watts, below), below: null } : { lowest, below: watts };
}

function idleOf({ energy, since, looks }: Look): Idle | null {
  if (looks === 0) return null;
  if (since === null) return energy === null ? { since: null, looks } : null;
  return { since: isoTime(Date.now() - Math.max(0, bootMilliseconds() - since)), looks };
}

/** On the clock of `bootMilliseconds()`: none is in the future. */
const bootTime: schema.Check<number> = (value, path) => schema.amount(bootMilliseconds())(value, path);
const QUANTITY = schema.or(schema.amount(), null);
const REST = schema.record({ lowest: QUANTITY, below: QUANTITY });
const LOOK = schema.record({
  boot: schema.text,
  at: bootTime,
  energy: QUANTITY,
  since: schema.or(bootTime, null),
  looks: schema.whole(),
  free: REST,
  used: REST,
});

function readLook(file: number): Look | null {
  const look = schema.readAs(LOOK, readRecord(file));
  if (look === null || look.boot !== bootId()) return null;
  return look.since !== null && look.since > look.at ? { ...look, since: null } : look;
}

function fileName(uuid: string): string {
  return `${uuid}.look`;
}
