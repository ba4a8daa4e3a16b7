import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { JobStore, jobAt, resolveJob } from '../jobs/index.ts';
import { showValue } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type Parsed, usage } from './options.ts';
import { say, write } from './output.ts';

/** As the keeper cuts: native/keeper/job_file.cc. */
const CHUNK = 64 * 1024;
const POLL_MS = 200;
const NEWLINE = 0x0a;

async function logs({ values, positionals: [word, more] }: Parsed): Promise<void> {
  if (word === undefined) throw usage('which job? Give its number or name; `gpu-owner jobs` lists them');
  if (more !== undefined) throw usage(`${showValue(more)} is one too many: logs shows one job`);
  const lines = values.lines === undefined ? null : numberOfLines(String(values.lines));
  const store = JobStore.open();
  const id = resolveJob(store, word);
  let file = -1;
  let at = 0;
  for (;;) {
    const { output, ended, state } = jobAt(store, id);
    const isOver = ended !== null || state === 'lost';
    if (file < 0 && output !== null) {
      file = openOutput(output, id);
      at = file < 0 || lines === null ? 0 : startOfLast(file, lines);
    }
    if (file >= 0) at = copy(file, at);
    if (!values.follow || isOver) break;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  if (file >= 0) closeSync(file);
}

function numberOfLines(text: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw usage(`-n: ${showValue(text)} is not a number of lines; use 20, for example`);
}

function openOutput(path: string, id: number): number {
  let file: number;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    throw usage(
      `the output of job ${id} can't be read: ${(error as Error).message}. Check whether the file was moved, and its permissions.`,
    );
  }
  // A device may have no end.
  if (fstatSync(file).isFile()) return file;
  throw usage(
    `the output of job ${id} can't be read again: ${showValue(path)} is not an ordinary file. To keep the output of a job, submit it without --output.`,
  );
}

/** Writes what stands there from an offset on. @returns the offset of its end */
function copy(file: number, from: number): number {
  const chunk = Buffer.alloc(CHUNK);
  // Somebody may have emptied the file.
  let at = fstatSync(file).size < from ? 0 : from;
  let dropped = 0;
  for (;;) {
    // Of a log that became too large, whole chunks were cut out of the middle.
    const start = at - (at % CHUNK);
    const length = readSync(file, chunk, 0, CHUNK, start);
    const bytes = chunk.subarray(at - start, length);
    if (bytes.length === 0) return at;
    at += bytes.length;
    if (length === CHUNK && isEmpty(chunk)) {
      dropped += bytes.length;
      continue;
    }
    if (dropped > 0) say(`${dropped} bytes of output were not kept here`);
    dropped = 0;
    write(1, bytes);
  }
}

function isEmpty(bytes: Buffer): boolean {
  return bytes[0] === 0 && bytes.every((byte) => byte === 0);
}

/** The offset where the last so many lines begin. */
function startOfLast(file: number, lines: number): number {
  const { size } = fstatSync(file);
  let left = lines;
  // The newline at the very end ends the last line.
  let before = true;
  for (let end = size; end > 0; ) {
    const start = Math.max(0, end - CHUNK);
    const bytes = Buffer.alloc(end - start);
    readSync(file, bytes, 0, bytes.length, start);
    for (let i = bytes.length - 1; i >= 0; i--) {
      if (before && start + i === size - 1) {
        before = false;
        if (bytes[i] === NEWLINE && lines > 0) continue;
      }
      if (lines === 0) return size;
      if (bytes[i] === NEWLINE && --left === 0) return start + i + 1;
    }
    end = start;
  }
  return 0;
}

export const COMMAND: Command = {
  usage: 'JOB [-f] [-n N]',
  about: `Prints what a job has written to standard output and error. JOB is a number or a name.`,
  groups: [
    {
      options: {
        follow: { short: 'f', help: 'go on until the job has ended' },
        lines: { short: 'n', value: 'N', help: 'begin with the last N lines' },
      },
    },
  ],
  operands: 'jobs',
  run: logs,
};
