import { closeSync, readSync } from 'node:fs';
import type { Directory } from '../platform/index.ts';

/**
 * Something that shows users of another convention that a GPU is ours, as long as its descriptor is open.
 *
 * lock: a lock on the file. text: the file itself, which contains `token`. pid: the file itself, which says nothing but the
 * PID of the process that keeps the lease.
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

const MOST_CONTENT = 4096;

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
export function remove(mark: Mark): void {
  hide(mark);
  closeSync(mark.descriptor);
}

/** Removes the file, if there is one of ours; the descriptor stays open. */
export function hide(mark: Mark): void {
  // Should somebody else have removed it, or taken our right to, then it is stale, as our lease isn't held.
  if (mark.kind !== 'lock' && saysOurs(mark)) mark.directory.remove(mark.name, mark.descriptor);
}

/** A number of any length takes the same room, so that one write replaces another as a whole. */
export function pidText(pid: number): string {
  return `${String(pid).padEnd(11)}\n`;
}

function contentOf(descriptor: number): string {
  const buffer = Buffer.alloc(MOST_CONTENT);
  try {
    return buffer.toString('utf8', 0, readSync(descriptor, buffer, 0, MOST_CONTENT, 0));
  } catch {
    return '';
  }
}
