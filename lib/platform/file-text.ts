import { readSync } from 'node:fs';

/** Makes the error for what is wrong with a file. */
export type Refuse = (why: string, cause?: unknown) => Error;

/** The size is not taken from stat: the file may be growing. @throws what `refuse` makes, e.g. of `tooLarge` */
export function readAtMost(descriptor: number, most: number, tooLarge: string, refuse: Refuse): Buffer {
  const chunks: Buffer[] = [];
  let total = 0;
  for (;;) {
    const chunk = Buffer.alloc(64 * 1024);
    let length: number;
    try {
      length = readSync(descriptor, chunk);
    } catch (error) {
      throw refuse(`it can't be read (${(error as NodeJS.ErrnoException).code})`, error);
    }
    if (length === 0) return Buffer.concat(chunks);
    total += length;
    if (total > most) throw refuse(tooLarge);
    chunks.push(chunk.subarray(0, length));
  }
}

/** A byte order mark is dropped. @throws what `refuse` makes */
export function decode(bytes: Uint8Array, refuse: Refuse): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (error) {
    throw refuse('it is not UTF-8; save it as UTF-8', error);
  }
}
