// The output of a job, a bounded part at a time.
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { stripVTControlCharacters } from 'node:util';
import { errorMessage } from '../errors.ts';
import { ANSWER_TIMEOUT_MS, CommandFailure, runOwn } from './own-command.ts';

export const MAX_LOG_BYTES = 64 * 1024;
/** How far before the end it may begin on another machine. */
const MAX_TAIL_BYTES = 16 * 1024 * 1024;
const MAX_CHARACTER_BYTES = 4;

interface LogPart {
  text: string;
  /** In bytes, as the others. */
  offset: number;
  nextOffset: number;
  size: number;
}

/**
 * Reads whole characters, without what only terminals understand.
 * @param path null: it has written nothing yet
 * @param from negative: so many bytes before the end
 * @throws CommandFailure if it can't be read
 */
export function readLog(path: string | null, from: number, maxBytes: number): LogPart {
  if (path === null) return { text: '', offset: 0, nextOffset: 0, size: 0 };
  let file: number;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    throw new CommandFailure(`its output can't be read: ${errorMessage(error)}`);
  }
  try {
    const status = fstatSync(file);
    if (!status.isFile())
      throw new CommandFailure("its output can't be read again: it is not an ordinary file");
    const { size } = status;
    const begin = from < 0 ? Math.max(0, size + from) : Math.min(from, size);
    const bytes = Buffer.alloc(Math.min(maxBytes, size - begin));
    return wholePart(bytes.subarray(0, readSync(file, bytes, 0, bytes.length, begin)), begin, from < 0, size);
  } finally {
    closeSync(file);
  }
}

/** @param bytes from `begin` on, @param isCut whether that may be within a character */
function wholePart(bytes: Buffer, begin: number, isCut: boolean, size: number): LogPart {
  const start = isCut && begin > 0 ? bytes.findIndex((byte) => !isContinuation(byte)) : 0;
  const end = begin + bytes.length < size ? wholeCharacters(bytes) : bytes.length;
  const whole = bytes.subarray(Math.max(0, start), Math.max(start, end));
  const offset = begin + Math.max(0, start);
  return { text: plain(whole.toString('utf8')), offset, nextOffset: begin + end, size };
}

/**
 * As {@link readLog}, of a job of another machine: reads on until it has what is wanted.
 * @returns also whether all was read; otherwise the size is what is known of it
 */
export async function readLogElsewhere(
  address: string,
  from: number,
  maxBytes: number,
): Promise<LogPart & { isWhole: boolean }> {
  const kept = from < 0 ? Math.min(-from, MAX_TAIL_BYTES) : maxBytes + MAX_CHARACTER_BYTES;
  let bytes = Buffer.alloc(0);
  let size = 0;
  const onOutput = (chunk: Buffer) => {
    const skipped = Math.max(0, from - size);
    size += chunk.length;
    if (from < 0) bytes = Buffer.concat([bytes, chunk]).subarray(-kept);
    else if (bytes.length < kept) bytes = Buffer.concat([bytes, chunk.subarray(skipped)]).subarray(0, kept);
    return from >= 0 && bytes.length >= kept;
  };
  const { exitCode, errors } = await runOwn(['logs', '--', address], {
    timeoutMs: ANSWER_TIMEOUT_MS,
    onOutput,
  });
  if (exitCode !== null && exitCode !== 0) throw new CommandFailure(errors);
  const begin = from < 0 ? size - bytes.length : Math.min(from, size);
  const part = wholePart(bytes.subarray(0, maxBytes), begin, from < 0, size);
  return { ...part, isWhole: exitCode === 0 };
}

const isContinuation = (byte: number) => (byte & 0xc0) === 0x80;

/** How many bytes there are without a character that is cut at the end; all, if it is no UTF-8. */
function wholeCharacters(bytes: Buffer): number {
  for (let back = 1; back <= Math.min(4, bytes.length); back++) {
    const byte = bytes[bytes.length - back] as number;
    if (isContinuation(byte)) continue;
    const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return needed > back && back < bytes.length ? bytes.length - back : bytes.length;
  }
  return bytes.length;
}

/** A line that was drawn anew, as progress bars do, is several lines. NUL stands where a long log was cut. */
function plain(text: string): string {
  return (
    stripVTControlCharacters(text)
      .replace(/\r+\n/g, '\n')
      .replaceAll('\r', '\n')
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
      .replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, '')
  );
}
