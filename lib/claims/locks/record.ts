import type { LeaseInfo } from '../../gpus/index.ts';
import {
  hostName,
  isoTime,
  isStopped,
  MAX_USER_NAME_LENGTH,
  pidNamespace,
  readBlock,
  sanitize,
  schema,
  textBlock,
  userName,
} from '../../platform/index.ts';

/**
 * A record informs people who holds a lock. Each record fills a block of its own in the lock's file, so that writing it needs
 * no disk space. Anybody may have written it: it is sanitised when read, and nothing is ever decided by it.
 */
export const RECORD_SIZE = 4096;

/** As native/process/secret.h makes them: in decimal, 15 digits at most. */
export const MAX_EPOCHS = 2 ** 49;
const MAX_COMMAND_LENGTH = 512; // characters
const MAX_RECORD_BYTES = 64 * 1024;

/** The record that this process writes about itself. */
export interface RecordContents {
  user: string;
  uid: number;
  pid: number;
  host: string;
  command: string;
  /** ISO 8601 */
  since: string;
  /** The boot of the machine that `since` belongs to. */
  boot: string;
  /** How long its command may run; missing: for ever. The keeper of the command adds `until`, in ms since 1970. */
  limitMs?: number | undefined;
  /** When its wait for GPUs ends, in ms since 1970; missing: never. Records of waiters have it. */
  waitUntil?: number | undefined;
  /** For people: the command's name, and a remark. The number as a background job. */
  name?: string | undefined;
  note?: string | undefined;
  job?: number | undefined;
  /** The number of this lease epoch: any one that no other epoch has. */
  generation: number;
  /** In which PIDs are meant; null: unknown. */
  pidNamespace: string | null;
  /** `parent` is the UUID of a MIG instance's GPU. */
  gpus?: { index: number; instance?: number | null; uuid: string; parent?: string; name?: string }[];
  [member: string]: unknown;
}

/** For what a keeper adds: its PID, the command's, how many survive, and when the epoch ended. In bytes. */
const KEEPER_BYTES = 200;
/** How many fit, however long the rest is. */
const MIN_GPUS = 4;

/**
 * A record that names GPUs: some 25 MIG instances or 45 whole GPUs. If there are more, names are left out, and then GPUs: a
 * record that is too long is unreadable.
 */
export function nameGPUs(record: RecordContents, gpus: NonNullable<RecordContents['gpus']>): RecordContents {
  const whole = { ...record, gpus };
  if (gpus.length <= MIN_GPUS || fits(whole)) return whole;
  const nameless = gpus.map(({ name: _, ...gpu }) => gpu);
  let fitting = nameless.length;
  while (fitting > MIN_GPUS && !fits({ ...record, gpus: nameless.slice(0, fitting) })) fitting--;
  return { ...record, gpus: nameless.slice(0, fitting) };
}

function fits(record: RecordContents): boolean {
  return Buffer.byteLength(JSON.stringify(record)) <= RECORD_SIZE - KEEPER_BYTES;
}

/**
 * The record of this process.
 *
 * @param command what it runs; default: its own command line
 * @param epoch default: a random one, without a secret
 */
export function ownRecord(
  boot: string,
  command = ownCommand(),
  epoch = Math.floor(Math.random() * MAX_EPOCHS),
): RecordContents {
  const uid = process.geteuid?.() ?? 0;
  return {
    user: userName(uid),
    uid,
    pid: process.pid,
    host: hostName(),
    command: sanitize(command, MAX_COMMAND_LENGTH),
    since: isoTime(),
    boot,
    generation: epoch,
    pidNamespace: pidNamespace(),
  };
}

function ownCommand(): string {
  return [process.argv0, ...process.argv.slice(1)].join(' ');
}

/** The block that a record fills. */
export function encodeRecord(contents: object): Uint8Array {
  // Cut rather than refused: what can't be read is shown as unknown.
  return textBlock(JSON.stringify(contents), RECORD_SIZE);
}

const RECORD = schema.jsonOf(schema.object);

/** A record as found, or null where there is none that can be read. Every member may be missing or absurd. */
export function decodeRecord(block: Uint8Array): Readonly<Record<string, unknown>> | null {
  const bytes = Buffer.from(block.buffer, block.byteOffset, Math.min(block.byteLength, MAX_RECORD_BYTES));
  // Most of it are blanks: the end is looked for in the bytes.
  return schema.readAs(RECORD, bytes.toString('utf8', 0, bytes.lastIndexOf('}') + 1));
}

/** The record at the beginning of a file. */
export function readRecord(descriptor: number): Readonly<Record<string, unknown>> | null {
  return decodeRecord(readBlock(descriptor, RECORD_SIZE));
}

const shown = (maxLength: number) => schema.or(shownOrNull(maxLength), null);
const shownOrNull =
  (maxLength: number): schema.Check<string | null> =>
  (value, path) =>
    schema.shownText(maxLength)(value, path) || null;
const count = (max: number) => schema.or(schema.whole(max), null);

const INFO = schema.record({
  user: shown(MAX_USER_NAME_LENGTH),
  uid: count(2 ** 32 - 1),
  pid: count(2 ** 22),
  host: shown(64),
  command: shown(200),
  since: shown(40),
  until: schema.or(schema.epochMs, null),
  idleEnds: schema.or(schema.epochMs, null),
  preemptible: schema.or(schema.flag, false),
  job: count(2 ** 31),
  name: shown(64),
  note: shown(200),
  survivors: count(2 ** 22),
});

/** The contents of a record, harmless to print. @param looks whether its process is looked at: it may be suspended */
export function leaseInfo(record: Readonly<Record<string, unknown>> | null, looks = true): LeaseInfo {
  const { user, uid, pid, host, command, since, until, idleEnds, preemptible, job, name, note, survivors } =
    INFO(record ?? {}, '');
  const isHere = record?.pidNamespace === pidNamespace() && host === hostName();
  return {
    user: user ?? 'somebody',
    uid,
    pid: pid || null,
    host,
    command,
    since: since === null ? null : moment(Date.parse(since)),
    convention: 'gpu-owner',
    ...(until === null ? {} : { until: new Date(until).toISOString() }),
    ...(idleEnds ? { idleEnds: new Date(idleEnds).toISOString() } : {}),
    ...(preemptible ? { preemptible } : {}),
    ...(job ? { job } : {}),
    ...(name === null ? {} : { name }),
    ...(note === null ? {} : { note }),
    ...(survivors ? { survivors } : {}),
    ...(looks && isHere && isStopped(pid || 0) ? { suspended: true } : {}),
  };
}

/** @param time ms since 1970, or NaN */
function moment(time: number): string | null {
  return Number.isNaN(time) ? null : new Date(time).toISOString();
}
