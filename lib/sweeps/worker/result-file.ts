import { constants as fsConstants } from 'node:fs';
import { open, statfs } from 'node:fs/promises';
import { errorCode, errorMessage, ifFailed } from '../../errors.ts';
import { errorReason, sanitize } from '../../platform/index.ts';
import { isValues, parseValue, type Values } from '../task/index.ts';

const MAX_RESULT_BYTES = 1024 ** 2;
/** A disk with less free space counts as full: other writers have taken the rest, or soon will. */
const MIN_FREE_BYTES = 64 * 1024;

/** The result that a command has written. `unreadable` says why it can't be read. */
type Result = { values: Values } | { unreadable: string } | null;

/** Reads a command's result; null: it has written none. */
export async function readResult(path: string): Promise<Result> {
  try {
    // Not blocking: it could be a pipe.
    const file = await open(path, fsConstants.O_RDONLY | fsConstants.O_NONBLOCK);
    try {
      const stat = await file.stat();
      if (!stat.isFile()) return { unreadable: 'it is not a regular file' };
      if (stat.size > MAX_RESULT_BYTES) {
        return {
          unreadable: `it has ${stat.size} bytes, and at most ${MAX_RESULT_BYTES} (1 MiB) are allowed`,
        };
      }
      return decode((await file.readFile()).subarray(0, MAX_RESULT_BYTES + 1));
    } finally {
      await file.close();
    }
  } catch (error) {
    return errorCode(error) === 'ENOENT' ? null : { unreadable: errorReason(error) };
  }
}

/** Whether a disk is full; false where that isn't known. */
export async function isDiskFull(path: string): Promise<boolean> {
  const { bavail, bsize } = await statfs(path).catch(ifFailed({ bavail: 1, bsize: MIN_FREE_BYTES }));
  return bavail * bsize < MIN_FREE_BYTES;
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
    const value = parseValue(text);
    if (isValues(value)) return { values: value };
    return {
      unreadable: `it is not a JSON object such as {"accuracy": 0.9}; it begins with ${sanitize(text.trim(), 40)}`,
    };
  } catch (error) {
    return { unreadable: `it is not JSON: ${sanitize(errorMessage(error))}` };
  }
}
