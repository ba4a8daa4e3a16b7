// Files with a token: a secret that those have who may ask.
import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import { decode, readAtMost } from './files.ts';
import { sanitize } from './text.ts';

const MIN_TOKEN_LENGTH = 16;
const MAX_TOKEN_BYTES = 4096;

/** Reads the secret in a file, without blanks around it. @throws ERR_CONFIGURATION */
export function readToken(path: string): string {
  const refuse = (why: string, cause?: unknown) =>
    new GPUOwnerError('ERR_CONFIGURATION', `--token-file ${sanitize(path, 300)}: ${why}`, { cause });
  let file: number;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    throw refuse(`it can't be opened (${(error as NodeJS.ErrnoException).code})`, error);
  }
  try {
    const { mode, size, uid } = fstatSync(file);
    if ((mode & 0o077) !== 0) {
      throw refuse(`others may read it, or write to it; chmod 600 ${sanitize(path, 300)}`);
    }
    if (uid !== 0 && uid !== process.geteuid?.()) {
      throw refuse(`it belongs to the user ${uid}, who knows the token; use a file of your own`);
    }
    const most = `it has ${size} bytes; a token has at most ${MAX_TOKEN_BYTES}`;
    const token = decode(readAtMost(file, MAX_TOKEN_BYTES, most, refuse), refuse).trim();
    if (token.length < MIN_TOKEN_LENGTH) {
      throw refuse(
        `the token has ${token.length} characters; it needs ${MIN_TOKEN_LENGTH} or more, so that nobody can guess it: openssl rand -hex 32 > FILE makes one`,
      );
    }
    return token;
  } finally {
    closeSync(file);
  }
}
