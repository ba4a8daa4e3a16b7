// A file for node_exporter's textfile collector, which may read it at any moment.
import { closeSync, fchmodSync, lstatSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import { sanitize, systemError } from '../platform/index.ts';

/**
 * Replaces a file by a rename, so that readers have the old text or the new one, and everybody may read it. If that fails, the old
 * file stays.
 * @throws ERR_INVALID_ARGUMENT where it can't be written; also for what is no regular file: a rename would replace it
 */
export function writeTextFile(path: string, text: string): void {
  const refuse = (why: string, cause?: unknown) =>
    new GPUOwnerError('ERR_INVALID_ARGUMENT', `${sanitize(path, 500)} can't be written: ${why}`, { cause });
  // Collectors read *.prom; this name is none, and nobody else's.
  const unfinished = join(dirname(path), `.${basename(path)}.${process.pid}.tmp`);
  try {
    const there = lstatSync(path, { throwIfNoEntry: false });
    if (path.endsWith('/') || there?.isDirectory()) throw refuse('it is a directory; name a file in it');
    if (there !== undefined && !there.isFile()) throw refuse('it is not a regular file; name another one');
    rmSync(unfinished, { force: true });
    const file = openSync(unfinished, 'wx', 0o644);
    try {
      fchmodSync(file, 0o644); // whatever the umask
      writeFileSync(file, text);
    } finally {
      closeSync(file);
    }
    renameSync(unfinished, path);
  } catch (error) {
    rmSync(unfinished, { force: true });
    if (error instanceof GPUOwnerError) throw error;
    throw refuse(systemError(-((error as NodeJS.ErrnoException).errno ?? 0)), error);
  }
}
