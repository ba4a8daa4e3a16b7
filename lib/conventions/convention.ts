import { closeSync, readSync } from 'node:fs';
import type { ConventionName } from '../config/index.ts';
import type { GPU, LeaseInfo } from '../gpus/index.ts';
import type { Directory, Waiting } from '../platform/index.ts';
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
  /** The number of the lease epoch that this claim begins; no other one has it. */
  epoch: number;
  /** A line of text that all claimants of the machine share; '' where there is none yet. */
  note: { read(): string; write(text: string): void };
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
 * their directories is trusted: no link is followed, nothing is waited for, no process is signalled.
 */
export interface Convention {
  readonly name: ConventionName;
  /**
   * The tool's directories, whether or not they exist, by their real paths: one that is a symbolic link doesn't count. Links on
   * the way do.
   * @param root see {@link machinePath}
   */
  directories(root?: string): string[];
  /** The user to whom one of its directories belongs, where therefore no lock in it counts; null: it may belong to whom it does. */
  untrustedOwnerAt(path: string): string | null;
  /**
   * Makes its directories where they are missing, with the modes that its own programs need: these may start while our lease
   * lasts. Directories of a user or a working directory are made only for a claim that asks for this convention by its name.
   * @param all all GPUs of the machine
   */
  prepare(all: readonly GPU[], byName: boolean): void;
  /** Before deciding: waits for those who decide just now, and keeps others from it. */
  enter(claimant: Claimant): Waiting<DecisionGuard | null>;
  /**
   * The holders of GPUs. Takes nothing.
   * @param tidy also remove what claims of ours left behind that were killed, and note traces of others: for one claimant at a time
   */
  holders(gpus: readonly GPU[], leases: Leases, tidy: boolean): Waiting<Holders>;
  /**
   * Shows others that a GPU is ours, whose lease we hold. Where it can't be shown, that is said and isn't an error.
   * @param all all GPUs of the machine
   * @returns what shows it, or who was quicker
   */
  mark(gpu: GPU, all: readonly GPU[], claimant: Claimant): Waiting<Mark[] | LeaseInfo>;
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
   * Until when a program that had looked before it was made may still replace it, on the clock of `now()`, in ms. Absent: such
   * programs take no longer than a claim does.
   */
  contestedUntil?: number;
}

const MAX_CONTENT_BYTES = 4096;

/** Whether others still see it. */
export function isIntact(mark: Mark): boolean {
  return mark.directory.isNamed(mark.descriptor, mark.name) && saysOurs(mark);
}

function saysOurs({ kind, descriptor, token }: Mark): boolean {
  if (kind === 'lock') return true;
  const content = contentOf(descriptor);
  return kind === 'pid' ? content.trim() === token : content.includes(token);
}

/** Takes it away if it is still ours. To be called before the lease ends. */
export function removeMark(mark: Mark): void {
  hideMark(mark);
  closeSync(mark.descriptor);
}

/** Removes the file, if there is one of ours; the descriptor stays open. */
export function hideMark(mark: Mark): void {
  // If another user has removed it, or taken our right to, the mark is stale, as our lease isn't held.
  if (mark.kind !== 'lock' && saysOurs(mark)) mark.directory.remove(mark.name, mark.descriptor);
}

/** A number of any length takes the same room, so that one write replaces another as a whole. */
export function pidText(pid: number): string {
  return `${String(pid).padEnd(11)}\n`;
}

function contentOf(descriptor: number): string {
  const buffer = Buffer.alloc(MAX_CONTENT_BYTES);
  try {
    return buffer.toString('utf8', 0, readSync(descriptor, buffer, 0, MAX_CONTENT_BYTES, 0));
  } catch {
    return '';
  }
}
