// Files of a sweep: they are looked for, and read.

import { closeSync, constants, fstatSync, openSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { problem } from '../../config/index.ts';
import { errorCode, errorMessage, ifPossible } from '../../errors.ts';
import { decode, type Refuse, readAtMost, sanitize, usageError } from '../../platform/index.ts';

export function hasSweepFiles(project: string): boolean {
  return ifPossible(() => findSweepFiles(project).length > 0, false);
}

const DIRECTORY = 'configs';

const PATTERN = /^config_exp.*\.yaml$/s;

const MIB = 1024 * 1024;

/** A sweep has some kilobytes; the parser needs seconds, and hundreds of megabytes, for this. */
const MAX_SWEEP_BYTES = MIB;

const MAX_COMMANDS_BYTES = 64 * MIB;

/**
 * `configs/config_exp*.yaml` of a project, `config_exp2.yaml` before `config_exp10.yaml`.
 * @throws ERR_INVALID_ARGUMENT if there are none
 */
export function findSweepFiles(project: string): string[] {
  const directory = join(project, DIRECTORY);
  let names: string[] = [];
  try {
    names = readdirSync(directory);
  } catch (error) {
    const code = errorCode(error);
    if (code !== 'ENOENT' && code !== 'ENOTDIR') {
      throw problem(directory, null, `it can't be listed (${code ?? errorMessage(error)})`, error);
    }
  }
  const found = names.filter((name) => PATTERN.test(name));
  if (found.length === 0) {
    const similar = names.find((name) => /\.ya?ml$/.test(name));
    throw usageError(
      `there is no ${sanitize(join(directory, 'config_exp*.yaml'), 500)}; name a sweep file${similar ? ` (such as ${sanitize(join(directory, similar), 500)})` : ''}, or use --grid or --commands`,
    );
  }
  const collator = new Intl.Collator('en', { numeric: true });
  return found
    .sort((a, b) => collator.compare(a, b) || (a < b ? -1 : 1))
    .map((name) => join(directory, name));
}

/** @throws ERR_CONFIGURATION if it can't be read, is no regular file, is too large, or isn't UTF-8 */
export function readSweepFile(path: string): string {
  return readRegular(
    path,
    MAX_SWEEP_BYTES,
    'larger than 1 MiB; long ranges can be written as --grid seed=0..100000',
  );
}

/** @param path '-': standard input @throws as {@link readSweepFile} */
export async function readCommands(path: string): Promise<string> {
  if (path !== '-')
    return readRegular(path, MAX_COMMANDS_BYTES, 'larger than 64 MiB; is it really a list of commands?');
  const refuse: Refuse = (why, cause) => problem('standard input', null, why, cause);
  const chunks: Buffer[] = [];
  let total = 0;
  try {
    for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
      total += chunk.length;
      if (total > MAX_COMMANDS_BYTES) break;
      chunks.push(chunk);
    }
  } catch (error) {
    throw refuse(`it can't be read (${errorCode(error)})`, error);
  }
  if (total > MAX_COMMANDS_BYTES) throw refuse('it is larger than 64 MiB; is it really a list of commands?');
  return decode(Buffer.concat(chunks), refuse);
}

function readRegular(path: string, most: number, tooLarge: string): string {
  const refuse: Refuse = (why, cause) => problem(path, null, why, cause);
  let descriptor: number;
  try {
    // O_NONBLOCK: a FIFO must not hold us up.
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch (error) {
    const code = errorCode(error);
    if (code === 'ENOENT') throw refuse("it doesn't exist", error);
    if (code === 'EACCES') throw refuse('no permission to read it', error);
    throw refuse(`it can't be opened (${code ?? errorMessage(error)})`, error);
  }
  try {
    const stat = fstatSync(descriptor);
    if (stat.isDirectory()) throw refuse('it is a directory; name the files in it, such as DIRECTORY/*.yaml');
    if (!stat.isFile())
      throw refuse(
        'it is not a regular file; copy its content to one (commands can also come from standard input: --commands -)',
      );
    return decode(readAtMost(descriptor, most, `it is ${tooLarge}`, refuse), refuse);
  } finally {
    closeSync(descriptor);
  }
}
