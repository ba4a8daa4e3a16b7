import { closeSync } from 'node:fs';
import type { ConventionName } from '../config/index.ts';
import type { GPU, LeaseInfo } from '../gpus/index.ts';
import { EXCLUSIVE, native, OFD, SHARED } from '../native.ts';
import { type Directory, readBlock, type Waiting } from '../platform/index.ts';
import type { machinePath } from './paths.ts';

/** Tells which leases are held. */
export interface Leases {
  /** Whether the lease of this GPU is held. */
  isLeased(uuid: string): boolean;
  /** Whether this epoch of this GPU's lease still lasts. */
  isHeld(uuid: string, epoch: number): boolean;
}

/** A claim, as the conventions see it. */
export interface Claimant extends Leases {
  user: string;
  /** Whether it is a claim of shares: other claims may have shares of the same GPUs. */
  isShare: boolean;
  /** The number of the lease epoch that this claim begins; no other one has it. */
  epoch: number;
  /** How long to wait for a suspended process, in ms. */
  timeoutMs: number;
}

/** Keeps the others from deciding while we do. */
export interface DecisionGuard {
  /** Lets them. Does nothing the second time. */
  leave(): void;
}

/** GPUs by their UUIDs, with who holds them. */
export type Holders = Map<string, LeaseInfo>;

/**
 * How other programs lock GPUs on this machine: who holds one by that, and how we show them that we do. Nothing that lies in
 * their directories is trusted: no link is followed, nothing is waited for, no process is signalled. A tool that doesn't need one of
 * the steps leaves it out.
 */
export interface Convention {
  readonly name: ConventionName;
  /**
   * The tool's directories, whether or not they exist, by their real paths: one that is a symbolic link doesn't count. Links on
   * the way do.
   * @param root see {@link machinePath}
   */
  directories(root?: string): string[];
  /**
   * Makes its directories where they are missing, with the modes that its own programs need: these may start while our lease
   * lasts. Directories of a user or a working directory are made only for a claim that asks for this convention by its name.
   * @param all all GPUs of the machine
   */
  prepare(all: readonly GPU[], byName: boolean): void;
  /** Before deciding: waits for those who decide just now, and keeps others from it. */
  enter?(claimant: Claimant): Waiting<DecisionGuard | null>;
  /**
   * The holders of GPUs. Takes nothing.
   * @param tidy also remove the marks of killed claims, and note traces of others: for one claimant at a time
   */
  holders?(gpus: readonly GPU[], leases: Leases, tidy: boolean): Waiting<Holders>;
  /**
   * Shows others that a GPU is ours, whose lease we hold. Where it can't be shown, that is said and isn't an error.
   * @param all all GPUs of the machine
   * @returns what shows it, or who was quicker
   */
  mark?(gpu: GPU, all: readonly GPU[], claimant: Claimant): Waiting<Mark[] | LeaseInfo>;
}

/**
 * Something that shows users of another convention that a GPU is ours, as long as its descriptor is open.
 *
 * lock: a lock on the file. text: the file itself, which contains `token`. pid: the file itself, which says nothing but the PID
 * of the process that keeps the lease, which is safe only where all who read it share a PID namespace: in another container,
 * that PID belongs to no process or to another one.
 */
export interface Mark {
  kind: 'lock' | 'text' | 'pid';
  uuid: string;
  /** Where it is, and under which name. */
  directory: Directory;
  name: string;
  descriptor: number;
  token: string;
  /**
   * Several shares of the GPU keep it, each with a lock on the byte of a PID of its own. The last one removes it. As
   * native/keeper/markers.cc does it.
   */
  isShared?: boolean;
  /**
   * Until when programs that had looked before it was made begin what they do before they replace it, on the clock of `now()`,
   * in ms. Absent: such programs take no longer than a claim does.
   */
  contestedUntil?: number;
}

const MAX_CONTENT_BYTES = 4096;

/** Whether others still see it. */
export function isIntact(mark: Mark): boolean {
  return mark.directory.isNamed(mark.descriptor, mark.name) && saysOurs(mark);
}

function saysOurs({ kind, descriptor, token, isShared = false }: Mark): boolean {
  if (kind === 'lock' || (kind === 'pid' && isShared)) return true;
  const content = contentOf(descriptor);
  return kind === 'pid' ? content.trim() === token : content.includes(token);
}

/** Takes it away if it is still ours. To be called before the lease ends. */
export function removeMark(mark: Mark): void {
  hideMark(mark);
  if (mark.isShared !== true) closeSync(mark.descriptor);
}

/** Removes the file, if there is one of ours; the descriptor stays open, unless others keep the mark, too. */
export function hideMark(mark: Mark): void {
  if (mark.isShared === true) leaveMark(mark);
  // If another user has removed it, or taken our right to, the mark is stale, as our lease isn't held.
  else if (mark.kind !== 'lock' && saysOurs(mark)) mark.directory.remove(mark.name, mark.descriptor);
}

/** PIDs are less. */
const MAX_PID = 2 ** 22;

/** The PID of a share's process that keeps a mark; null: it isn't one that shares keep, or none is left. */
export function keeperOf(directory: Directory, name: string): number | null {
  const descriptor = directory.openForProbe(name);
  if (descriptor < 0) return null;
  try {
    return keeperBehind(descriptor);
  } finally {
    native().fileClose(descriptor);
  }
}

function keeperBehind(descriptor: number): number | null {
  const pid = native().lockProbe(descriptor, OFD, EXCLUSIVE, 1, MAX_PID);
  return pid > 0 ? pid : null;
}

/** Has this process keep a mark with others. @returns whether it is still the one that others see */
export function keepMark(directory: Directory, name: string, descriptor: number): boolean {
  const error = native().lockTry(descriptor, OFD, SHARED, process.pid, 1);
  return error === 0 && directory.isNamed(descriptor, name);
}

function leaveMark({ kind, directory, name, descriptor, token }: Mark): void {
  const left = directory.openForProbe(name);
  closeSync(descriptor);
  if (left < 0) return;
  try {
    const other = keeperBehind(left);
    if (other === null) directory.remove(name, left);
    else if (kind === 'pid') passOn(directory, name, token, other);
  } finally {
    native().fileClose(left);
  }
}

/** Has a file name another process that keeps it, if it names this one. */
function passOn(directory: Directory, name: string, token: string, pid: number): void {
  const descriptor = directory.openShared(name, 0, 0o644);
  if (descriptor < 0) return;
  if (contentOf(descriptor).trim() === token) native().fileWriteBlock(descriptor, Buffer.from(pidText(pid)));
  closeSync(descriptor);
}

/** A number of any length takes the same room, so that one write replaces another as a whole. */
export function pidText(pid: number): string {
  return `${String(pid).padEnd(11)}\n`;
}

function contentOf(descriptor: number): string {
  return readBlock(descriptor, MAX_CONTENT_BYTES).toString();
}
