// Claims inside of jobs. A job is known by its number, the epoch of its lease, which its command inherits in GPU_OWNER_JOB.
// Everybody can read that, and lock what is like it. So the number is made of a secret, which lies in a file that only the
// job's user can read: a process that can show a secret for the only epoch of a lease is the lease's holder, or started by this
// user.

import type { Mark } from '../../conventions/index.ts';
import { GPUOwnerError } from '../../errors.ts';
import type { GPU } from '../../gpus/index.ts';
import { errno, native } from '../../native.ts';
import {
  descendsFrom,
  type FileStatus,
  pathIn,
  pidNamespace,
  readBlock,
  showValue,
  statusBehind,
  statusOf,
  systemError,
  usageError,
  userName,
  warnOnce,
} from '../../platform/index.ts';
import { findHeld, isLocked, MAX_DEPTH } from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import { leaseInfo, MAX_EPOCHS } from './record.ts';

/** The `gpu-owner run`, known by GPU_OWNER_JOB, inside of which this process claims: claims are met from what it holds. */
export interface ParentJob {
  epoch: number;
  /** How many GPUs of this machine it holds. */
  size: number;
}

/** Proves that a job belongs to this user. */
export interface JobSecret {
  secret: string;
  /** The number that follows from it. */
  epoch: number;
}

/** The file of a job, as others can see it: only its user can make or change it. */
export interface JobFile {
  uid: number;
  /** When it was made, in ms since 1970, as the kernel says. */
  madeAt: number;
  /** Whether its lease gives way. Others see only the file's size: that of a preemptible job is larger. */
  isPreemptible: boolean;
}

/** The file of the job that holds an epoch; null: none, or an orphaned one. */
export function readJobFile(directory: LockDirectory, epoch: number): JobFile | null {
  const name = jobName(epoch);
  for (const path of directory.all) {
    const descriptor = directory.openForProbe(name, path);
    if (descriptor === -errno.ENOENT) continue;
    // Files of others can't be opened, but seen.
    if (descriptor < 0) return jobFileOf(statusOf(pathIn(path, name)));
    try {
      if (isLocked(descriptor)) return jobFileOf(statusBehind(descriptor));
    } finally {
      native().fileClose(descriptor);
    }
  }
  return null;
}

function jobFileOf(status: FileStatus | null): JobFile | null {
  if (status === null) return null;
  const { uid, size, changedAt } = status;
  return { uid, madeAt: changedAt, isPreemptible: size >= MAX_CONTENT_BYTES };
}

const MAX_CONTENT_BYTES = 64;
/** Upper bound on the job files that one claim checks for orphaned ones. */
const MAX_OLD_FILES = 64;

/** null: the system gives none, and the job can't be proved. */
export function newJobSecret(): JobSecret | null {
  const secret = native().processSecret();
  return secret === '' ? null : { secret, epoch: native().processSecretNumber(secret) };
}

/**
 * Makes the file that proves a job, as long as its descriptor is open.
 * @param isNeeded whether limits are counted by it
 * @returns null: there can be none, and claims inside will be made on the machine @throws ERR_LOCK_DIRECTORY where it is needed
 */
export function makeJobFile(
  directory: LockDirectory,
  { secret, epoch }: JobSecret,
  isPreemptible: boolean,
  isNeeded: boolean,
): Mark | null {
  const name = jobName(epoch);
  const text = `${secret} ${epoch}\n`.padEnd(isPreemptible ? MAX_CONTENT_BYTES : 0);
  const made = directory.createLocked(name, Buffer.from(text));
  if (typeof made !== 'number') return { kind: 'text', uuid: '', name, token: String(epoch), ...made };
  if (isNeeded)
    throw new GPUOwnerError(
      'ERR_LOCK_DIRECTORY',
      `the file ${name} can't be made in ${directory.path}: ${systemError(-made)}. The limits of this machine (limits in the configuration) count GPUs by such files, so none can be claimed. Make room there.`,
    );
  warnOnce(
    `the file ${name} can't be made in ${directory.path}: ${systemError(-made)}. Claims inside this job can't verify it, ` +
      'so they choose among all GPUs of the machine.',
  );
  return null;
}

/** Removes the files of this user's killed jobs. Such a file is never locked a second time. */
export function removeOldJobFiles(directory: LockDirectory): void {
  const names = directory.namesIn(directory.path).filter((name) => /^job-\d{1,15}(\.\w{6})?$/.test(name));
  const start = names.length > MAX_OLD_FILES ? Math.floor(Math.random() * names.length) : 0;
  for (const name of [...names.slice(start), ...names].slice(0, Math.min(names.length, MAX_OLD_FILES))) {
    for (const descriptor of directory.filesNamed(name, [directory.path])) {
      const isOwn = statusBehind(descriptor)?.uid === process.geteuid?.();
      if (isOwn && !isLocked(descriptor)) directory.remove(name, descriptor);
    }
  }
}

/**
 * The job that this process belongs to; null: none. The environment is believed only as far as the job is proved, and not where
 * /proc shows that another user started the process: variables get about (`at`, files that are sourced).
 *
 * @throws ERR_INVALID_ARGUMENT where no more levels are left
 */
export function findParentJob(directory: LockDirectory | null, gpus: readonly GPU[]): ParentJob | null {
  const value = process.env.GPU_OWNER_JOB;
  if (!value) return null;
  const epoch = parseEpoch(value);
  if (epoch === null) return warnIgnored(`is ${showValue(value)}, which is not a job`);
  if (directory === null) return warnIgnored('names a job that holds no GPU here');
  let size = 0;
  let isCertain = true;
  let record: Record<string, unknown> | null = null;
  for (const { uuid } of gpus) {
    const held = uuid === '' ? null : findHeld(directory, uuid, epoch);
    if (held === null) continue;
    if (held.depth === MAX_DEPTH) {
      throw usageError(
        `claims are nested more than ${MAX_DEPTH} deep. Check whether a command starts itself again with gpu-owner.`,
      );
    }
    size++;
    isCertain &&= held.isCertain;
    record = held.record;
  }
  if (size === 0) {
    return warnIgnored(
      `names a job that holds no GPU in ${directory.path}: it has ended, or uses another lock directory`,
    );
  }
  const unproved = whyUnproved(directory, epoch);
  if (unproved !== null) return warnIgnored(unproved);
  if (!isCertain) {
    return warnIgnored(
      `can't be checked: a program that is not gpu-owner has locked lease files in ${directory.path} (as root, \`fuser -v\` tells which)`,
    );
  }
  if (isForeignJob(record, epoch)) {
    const { user, pid, command } = leaseInfo(record);
    return warnIgnored(
      `names a job that did not start this process (${user}, pid ${pid ?? 'unknown'}: ${command ?? 'unknown'})`,
    );
  }
  return { epoch, size };
}

export function jobName(epoch: number): string {
  return `job-${epoch}`;
}

function parseEpoch(value: string): number | null {
  if (!/^\d{1,15}$/.test(value)) return null;
  const epoch = Number(value);
  return epoch < MAX_EPOCHS ? epoch : null;
}

/** null: this user has started the job. */
function whyUnproved(directory: LockDirectory, epoch: number): string | null {
  const name = jobName(epoch);
  let why = `names a job that can't be verified: ${name} is missing in ${directory.path}`;
  for (const path of directory.all) {
    const descriptor = directory.openForProbe(name, path);
    if (descriptor === -errno.ENOENT) continue;
    // Also for root, and where users have other numbers (user namespaces): the kernel tells whose the file is.
    if (descriptor < 0) {
      why = `names a job of another user (${systemError(-descriptor)}: ${name} in ${path})`;
      continue;
    }
    try {
      const uid = statusBehind(descriptor)?.uid;
      if (uid !== process.geteuid?.()) why = `names a job of another user (${userName(uid ?? -1)})`;
      else if (proves(descriptor, epoch)) return null;
      else why = `names a job that can't be verified: somebody has replaced ${name} in ${path}`;
    } finally {
      native().fileClose(descriptor);
    }
  }
  return why;
}

function proves(descriptor: number, epoch: number): boolean {
  const [secret = ''] = readBlock(descriptor, MAX_CONTENT_BYTES).toString('latin1').split(' ');
  return /^[0-9a-f]{32}$/.test(secret) && native().processSecretNumber(secret) === epoch;
}

/** The record may make a claim stay outside of the job, never let it in. */
function isForeignJob(record: Record<string, unknown> | null, epoch: number): boolean {
  if (record?.generation !== epoch || record.pidNamespace !== pidNamespace()) return false;
  return descendsFrom([record.keeper, record.pid]) === false;
}

function warnIgnored(why: string): null {
  warnOnce(`GPU_OWNER_JOB ${why}. It is ignored: the claim chooses among all GPUs of the machine.`);
  return null;
}
