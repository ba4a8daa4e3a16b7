import type { LeaseInfo } from '../gpus/index.ts';
import {
  hostName,
  isoTime,
  MAX_USER_NAME_LENGTH,
  pidNamespace,
  sanitize,
  userName,
} from '../platform/index.ts';

/**
 * A record informs people who holds a lock. It fills a block of its own in the lock's file, so that writing it needs no
 * disk space. Anybody may have written it: it is sanitised when read, and nothing is ever decided by it.
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
  /** For people: the command's name, and a remark. Its number as a background job. */
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
const KEEPER_BYTES = 160;
/** So many fit however long the rest is. */
const MIN_GPUS = 4;

/**
 * A record that names GPUs: some 25 MIG instances or 45 whole GPUs. Of more, names are left out, and then GPUs: one that is too long
 * can't be read by anybody.
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
 * @param epoch default: one by chance, of which nobody knows a secret
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

let block: Buffer | undefined;
let used = 0;

/** The block that a record fills. It is good until the next one is made: a claim makes three, and memory isn't free. */
export function encodeRecord(contents: object): Uint8Array {
  if (block === undefined) {
    block = Buffer.alloc(RECORD_SIZE, ' ');
    block[RECORD_SIZE - 1] = 0x0a;
  }
  // Cut rather than refused: what can't be read is shown as unknown.
  const length = block.write(JSON.stringify(contents), 0, RECORD_SIZE - 1, 'utf8');
  if (length < used) block.fill(' ', length, used);
  used = length;
  return block;
}

/** A record as found, or null where there is none that can be read. Every member may be missing or absurd. */
export function decodeRecord(block: Uint8Array): Record<string, unknown> | null {
  const bytes = Buffer.from(block.buffer, block.byteOffset, Math.min(block.byteLength, MAX_RECORD_BYTES));
  const text = bytes.toString('utf8').replace(/[\s\0]+$/, '');
  if (text === '') return null;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : null;
  } catch {
    return null;
  }
}

/** The contents of a record, harmless to print. */
export function leaseInfo(record: Record<string, unknown> | null): LeaseInfo {
  const info: LeaseInfo = {
    user: text(record?.user, MAX_USER_NAME_LENGTH) ?? 'somebody',
    uid: naturalNumber(record?.uid, 2 ** 32 - 1),
    pid: naturalNumber(record?.pid, 2 ** 22) || null,
    host: text(record?.host, 64),
    command: text(record?.command, 200),
    since: time(record?.since),
    convention: 'gpu-owner',
  };
  const until = moment(record?.until);
  if (until !== null) info.until = until;
  const job = naturalNumber(record?.job, 2 ** 31);
  if (job) info.job = job;
  const name = text(record?.name, 64);
  if (name !== null) info.name = name;
  const note = text(record?.note, 200);
  if (note !== null) info.note = note;
  const survivors = naturalNumber(record?.survivors, 2 ** 22);
  if (survivors) info.survivors = survivors;
  return info;
}

function text(value: unknown, most: number): string | null {
  return typeof value === 'string' ? sanitize(value, most) || null : null;
}

/** A number from a record: `Number()` would throw for an object whose methods somebody has overwritten. */
export function naturalNumber(value: unknown, most = Number.MAX_SAFE_INTEGER): number | null {
  return Number.isSafeInteger(value) && Number(value) >= 0 && Number(value) <= most ? Number(value) : null;
}

function time(value: unknown): string | null {
  return typeof value === 'string' && value.length <= 40 ? moment(Date.parse(value)) : null;
}

/** @param value ms since 1970 */
function moment(value: unknown): string | null {
  const date = new Date(typeof value === 'number' ? value : Number.NaN);
  return Number.isNaN(date.getTime()) ? null : date.toISOString();
}
