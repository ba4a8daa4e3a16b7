// The file of a job in the background, as far as its keeper writes it.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const OFFSET = 4096;
const SIZE = 512;

export interface JobState {
  keeper: number | null;
  front: number | null;
  pid: number | null;
  exitCode: number | null;
  signal: number | null;
  commandEnded: number | null;
  ended: number | null;
  timeLimit: boolean;
  cancelled: boolean;
}

/** A file with room for everything, all of it different from what is written there. */
export function emptyJobFile(directory: string): string {
  const file = join(directory, 'job');
  const blank = Buffer.alloc(OFFSET + SIZE, '.');
  blank.write(`${'{}'.padEnd(SIZE - 1)}\n`, OFFSET);
  writeFileSync(file, Buffer.concat([blank, Buffer.alloc(1000, '.')]));
  return file;
}

export function jobState(file: string): JobState {
  return JSON.parse(readFileSync(file, 'utf8').slice(OFFSET, OFFSET + SIZE));
}
