import { closeSync, constants, fstatSync, openSync, statSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import { decode, isMissing, isRoot, readAtMost, sanitize } from '../platform/index.ts';

/** A configuration has some hundred bytes; the parser's time grows with the square of the number of keys. */
const MAX_BYTES = 64 * 1024;

/** Whose configuration a file has. */
export type Kind = 'machine' | 'user';

/** What is wrong with a file, and in which line. */
export function problem(path: string, line: number | null, text: string, cause?: unknown): GPUOwnerError {
  const where = line === null ? sanitize(path, 500) : `${sanitize(path, 500)}:${line}`;
  return new GPUOwnerError('ERR_CONFIGURATION', `${where}: ${text}`, { cause });
}

/**
 * The text of a configuration file; null where there is none. The file must be one that others can't have tampered with.
 * @param required whether the file was named explicitly, so that it must exist.
 * @throws {GPUOwnerError} ERR_CONFIGURATION
 */
export function readText(path: string, kind: Kind, required: boolean): string | null {
  // The usual case, without the error that would have to be made for it.
  if (!required && isMissing(path)) return null;
  let descriptor: number;
  try {
    // O_NONBLOCK: a FIFO must not hold a claim up.
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') {
      if (!required) return null;
      throw problem(
        path,
        null,
        "GPU_OWNER_MACHINE_CONFIG names this file, and it doesn't exist; create it, unset the variable, or set it to /dev/null for none",
        error,
      );
    }
    // Somebody else's home, after `su` or `sudo` kept HOME: not our user's file.
    if (code === 'EACCES' && kind === 'user' && !canSee(path)) return null;
    if (code === 'EACCES') {
      throw problem(path, null, 'no permission to read it; let everybody read it (chmod a+r)', error);
    }
    throw problem(path, null, `it can't be opened (${code ?? message})`, error);
  }
  try {
    const stat = fstatSync(descriptor);
    if (stat.isDirectory()) throw problem(path, null, 'it is a directory; it must be a file in YAML');
    if (!stat.isFile()) throw problem(path, null, 'it is not a regular file; it must be a file in YAML');
    checkTrust(path, stat.mode, stat.uid, kind, required);
    const refuse = (why: string, cause?: unknown) => problem(path, null, why, cause);
    const tooLarge = 'it is larger than 64 KiB; is it really the configuration?';
    return decode(readAtMost(descriptor, MAX_BYTES, tooLarge, refuse), refuse);
  } finally {
    closeSync(descriptor);
  }
}

function canSee(path: string): boolean {
  try {
    statSync(path);
    return true;
  } catch {
    return false;
  }
}

function checkTrust(path: string, mode: number, uid: number, kind: Kind, named: boolean): void {
  if ((mode & 0o002) !== 0) {
    throw problem(path, null, 'everybody may write to it, so anybody could change it; chmod o-w');
  }
  if (kind === 'user' || isRoot(uid) || (named && uid === process.geteuid?.())) return;
  throw problem(path, null, `it belongs to uid ${uid}; the machine's file must belong to root (chown root)`);
}
