// The text format of Prometheus, version 0.0.4, and files with it, which node_exporter's textfile collector may read at any moment.
import { closeSync, fchmodSync, lstatSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import { errorReason, sanitize } from '../platform/index.ts';

/** A number, and the labels that tell it from others of its name. */
export interface MetricSample {
  labels: Readonly<Record<string, string>>;
  value: number;
}

/** Samples of one name: gauges. */
export interface Family {
  name: string;
  help: string;
  samples: readonly MetricSample[];
}

export const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Formats families as text for Prometheus, version 0.0.4 of the format. */
export function exposition(families: readonly Family[]): string {
  return families
    .map(({ name, help, samples }) => {
      const lines = samples.map(({ labels, value }) => `${name}${formatLabels(labels)} ${value}\n`);
      const explained = help.replace(/\\/g, '\\\\').replace(/\n/g, '\\n');
      return `# HELP ${name} ${explained}\n# TYPE ${name} gauge\n${lines.join('')}`;
    })
    .join('');
}

function formatLabels(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([key, value]) => {
    const escaped = value.replace(/\\/g, '\\\\').replace(/"/g, '\\"').replace(/\n/g, '\\n');
    return `${key}="${escaped}"`;
  });
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`;
}

/**
 * Replaces a file by a rename, so that readers have the old text or the new one, and everybody may read it. If that fails, the old
 * file stays.
 * @throws ERR_INVALID_ARGUMENT where it can't be written; also for what is no regular file: a rename would replace it
 */
export function writeTextFile(path: string, text: string): void {
  const refuse = (why: string, cause?: unknown) =>
    new GPUOwnerError('ERR_INVALID_ARGUMENT', `${sanitize(path, 500)} can't be written: ${why}`, { cause });
  // Collectors read *.prom; this name is none of them, and unique to this process.
  const unfinished = join(dirname(path), `.${basename(path)}.${process.pid}.tmp`);
  try {
    const there = lstatSync(path, { throwIfNoEntry: false });
    if (path.endsWith('/') || there?.isDirectory()) throw refuse('it is a directory; name a file in it');
    if (there !== undefined && !there.isFile()) throw refuse('it is not a regular file; name another one');
    rmSync(unfinished, { force: true });
    const file = openSync(unfinished, 'wx', 0o644);
    try {
      fchmodSync(file, 0o644); // despite the umask
      writeFileSync(file, text);
    } finally {
      closeSync(file);
    }
    renameSync(unfinished, path);
  } catch (error) {
    rmSync(unfinished, { force: true });
    if (error instanceof GPUOwnerError) throw error;
    throw refuse(errorReason(error), error);
  }
}
