// The output of a job, a bounded part at a time.
import { stripVTControlCharacters } from 'node:util';
import type { OutputPiece } from '../fleet/index.ts';
import { CommandFailure, runOwn } from './own-command.ts';

export const MAX_LOG_BYTES = 64 * 1024;

interface LogPart {
  text: string;
  /** In bytes, as the others. */
  offset: number;
  nextOffset: number;
  size: number;
}

/**
 * Reads whole characters, without what only terminals understand. From another machine comes no more than is wanted.
 * @param word the job's number or address
 * @param from an offset in bytes; negative: from the end
 * @throws CommandFailure if it can't be read
 */
export async function readLog(word: string, from: number, maxBytes: number): Promise<LogPart> {
  const { exitCode, output, errors } = await runOwn(['logs', `--over-ssh=${from},${maxBytes}`, '--', word]);
  if (exitCode !== 0) throw new CommandFailure(errors);
  const pieces = output
    .split('\n')
    .filter(Boolean)
    .flatMap((line) => JSON.parse(line) as OutputPiece[]);
  const { at, size } = pieces.at(-1) ?? { at: 0, size: 0 };
  if (from > size) return { text: '', offset: size, nextOffset: size, size };
  // More came if the connection was lost in between.
  const all = Buffer.concat(pieces.map((piece) => Buffer.from(piece.bytes, 'base64')));
  const bytes = all.subarray(0, maxBytes);
  const first = pieces.find((piece) => piece.bytes !== '');
  const begin = first === undefined ? at : first.at - Buffer.byteLength(first.bytes, 'base64');
  // The bytes may begin and end within a character.
  const start =
    from < 0 && begin > 0
      ? Math.max(
          0,
          bytes.findIndex((byte) => !isContinuation(byte)),
        )
      : 0;
  const isWhole = at >= size && bytes.length === all.length;
  const end = isWhole ? bytes.length : wholeCharacters(bytes);
  const text = plain(bytes.subarray(start, Math.max(start, end)).toString('utf8'));
  return { text, offset: begin + start, nextOffset: at - (all.length - end), size };
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

/** A redrawn line (a progress bar) becomes several lines. NUL stands where a long log was cut. */
function plain(text: string): string {
  return (
    stripVTControlCharacters(text)
      .replace(/\r+\n/g, '\n')
      .replaceAll('\r', '\n')
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
      .replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, '')
  );
}
