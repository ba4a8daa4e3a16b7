import { constants } from 'node:fs';
import { open, statfs } from 'node:fs/promises';
import { sanitize, systemError } from '../../platform/index.ts';
import { parse, type Values, Written } from '../task/index.ts';

const MOST_BYTES = 1024 ** 2;
/** A disk with less is full: other writers have taken the rest, or soon will. */
const LEFT_AT_LEAST = 64 * 1024; // bytes

/** What a command left as its result. `unreadable` says why, for people. */
export type Result = { values: Values } | { unreadable: string } | null;

/** Reads the result that a command has written; null: none. */
export async function readResult(path: string): Promise<Result> {
  try {
    // Not blocking: it could be a pipe.
    const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      const stat = await file.stat();
      if (!stat.isFile()) return { unreadable: 'it is no file' };
      if (stat.size > MOST_BYTES) {
        return { unreadable: `it has ${stat.size} bytes, and at most ${MOST_BYTES} (1 MiB) are allowed` };
      }
      return decode((await file.readFile()).subarray(0, MOST_BYTES + 1));
    } finally {
      await file.close();
    }
  } catch (error) {
    const { code, errno, message } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') return null;
    return { unreadable: errno === undefined ? message : systemError(-errno) };
  }
}

/** Whether next to nothing can be written there; false where that isn't known. */
export async function isDiskFull(path: string): Promise<boolean> {
  const { bavail, bsize } = await statfs(path).catch(() => ({ bavail: 1, bsize: LEFT_AT_LEAST }));
  return bavail * bsize < LEFT_AT_LEAST;
}

function decode(bytes: Uint8Array): Result {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return { unreadable: 'it is not UTF-8 text' };
  }
  if (text.trim() === '') return { unreadable: 'it is empty' };
  try {
    const value = parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Written)) {
      return { values: value as Values };
    }
    return {
      unreadable: `it is no JSON object ({"accuracy": 0.9}), but begins with ${sanitize(text.trim(), 40)}`,
    };
  } catch (error) {
    return { unreadable: `it is not JSON: ${sanitize((error as Error).message)}` };
  }
}
