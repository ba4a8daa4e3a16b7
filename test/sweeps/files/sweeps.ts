// Sweeps in files that tests write, as openSweep reads them.
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { inject } from 'vitest';
import { openSweep, type Sweep, type SweepSource } from '../../../lib/sweeps/files/index.ts';
import { formatValue, type TaskSpec } from '../../../lib/sweeps/task/index.ts';

const directory = mkdtempSync(join(inject('bundles'), 'sweeps-'));
let number = 0;

/** A project of its own with these files. */
export function project(files: Readonly<Record<string, string | Uint8Array>>): string {
  const path = join(directory, String(number++));
  mkdirSync(path);
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(path, name)), { recursive: true });
    writeFileSync(join(path, name), text);
  }
  return path;
}

export function open(source: Partial<SweepSource>): Promise<Sweep> {
  return openSweep({ project: directory, ...source });
}

/** Reads a sweep file `s.yaml` with this text. */
export function read(text: string | Uint8Array, source: Partial<SweepSource> = {}): Promise<Sweep> {
  return open({ files: [join(project({ 's.yaml': text }), 's.yaml')], ...source });
}

export async function tasks(text: string, source: Partial<SweepSource> = {}): Promise<TaskSpec[]> {
  return Array.from((await read(text, source)).tasks());
}

/** The parameters of the only task of a phase `p` with these lines, as they are shown. */
export async function parameters(...lines: string[]): Promise<Record<string, string>> {
  const [task, ...more] = await tasks(
    `p:\n  combinations: [{seed: [1]}]\n${lines.map((line) => `  ${line}\n`).join('')}`,
  );
  if (task === undefined || more.length > 0) throw new Error('not one task');
  return Object.fromEntries(Object.entries(task.parameters).map(([key, value]) => [key, formatValue(value)]));
}

/** Returns why it is refused, without the path of the file: `s.yaml:3: …`. */
export async function refusal(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    const { code, message } = error as { code?: string; message: string };
    if (code !== 'ERR_CONFIGURATION' && code !== 'ERR_INVALID_ARGUMENT') throw error;
    return message.replaceAll(new RegExp(`${directory}/\\d+/?`, 'g'), '');
  }
  throw new Error('it was accepted');
}

/** The first few of many. */
export function first<T>(count: number, items: Iterable<T>): T[] {
  const taken: T[] = [];
  for (const item of items) {
    if (taken.length === count) break;
    taken.push(item);
  }
  return taken;
}
