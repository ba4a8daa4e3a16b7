import {
  appendFileSync,
  chownSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  append,
  FileBusyError,
  FileChangedError,
  type Fingerprint,
  readFingerprint,
  replace,
  type TableFile,
  waitUntilUnchanged,
} from '../../../lib/sweeps/tables/table-file.ts';

/** Runs once, right after a file got its name. */
let afterRename: (() => void) | null = null;

vi.mock('node:fs', async (original) => {
  const fs = await original<typeof import('node:fs')>();
  const renameSync = (...args: Parameters<typeof fs.renameSync>) => {
    fs.renameSync(...args);
    afterRename?.();
    afterRename = null;
  };
  return { ...fs, renameSync };
});

let directory: string;
let path: string;
let table: TableFile;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'file-'));
  path = join(directory, 'final_results.csv');
  table = { path, project: directory };
  writeFileSync(path, 'a,b\n1,2\n');
});
afterEach(() => rmSync(directory, { recursive: true }));

async function stamp(): Promise<Fingerprint> {
  return (await readFingerprint(table)) as Fingerprint;
}

const CHANGES: [string, () => void][] = [
  ['appends', () => appendFileSync(path, '3,4\n')],
  ['truncates', () => truncateSync(path, 4)],
  ['empties', () => writeFileSync(path, '')],
  ['writes as much', () => writeFileSync(path, 'a,b\n1,9\n')],
  [
    'renames',
    () => {
      writeFileSync(`${path}.new`, 'a,b\n1,2\n');
      renameSync(`${path}.new`, path);
    },
  ],
];

describe.each(CHANGES)('a change by somebody who %s the file', (_, change) => {
  test('before an append stops it', async () => {
    const before = await stamp();
    await sleep(20); // clocks of file systems are coarse
    change();
    const text = readFileSync(path, 'utf8');
    expect(() => append(table, before, Buffer.from('5,6\n'))).toThrow(FileChangedError);
    expect(readFileSync(path, 'utf8')).toBe(text);
  });

  test('while a new file is written stops that', async () => {
    let text = '';
    const writing = replace(table, await stamp(), async (file) => {
      await file.appendFile('new');
      await sleep(20);
      change();
      text = readFileSync(path, 'utf8');
    });
    await expect(writing).rejects.toThrow(FileChangedError);
    expect(readFileSync(path, 'utf8')).toBe(text);
    expect(readdirSync(directory)).toEqual(['final_results.csv']);
  });
});

test('a file that somebody makes or removes while ours is written is noticed', async () => {
  const before = await stamp();
  rmSync(path);
  const making = replace(table, null, async () => writeFileSync(path, 'theirs'));
  await expect(making).rejects.toThrow(FileChangedError);
  expect(readFileSync(path, 'utf8')).toBe('theirs');
  await expect(replace(table, before, async () => rmSync(path))).rejects.toThrow();
  expect(readdirSync(directory)).toEqual([]);
});

test('a row that another process appends as soon as the new file is there is noticed', async () => {
  afterRename = () => appendFileSync(path, '3,4\n');
  const replaced = replace(table, await stamp(), async (file) => file.appendFile('a,b\n'));
  await expect(replaced).rejects.toThrow(FileChangedError);
  expect(readFileSync(path, 'utf8')).toBe('a,b\n3,4\n');
});

test('a file that is written by and by is left alone until it is complete', async () => {
  const ended = (async () => {
    for (let at = 0; at < 12; at++) {
      appendFileSync(path, `${at},x\n`);
      await sleep(20);
    }
    return Date.now();
  })();
  await waitUntilUnchanged(table);
  const settled = Date.now();
  expect(settled).toBeGreaterThanOrEqual((await ended) - 20);
  const timer = setInterval(() => appendFileSync(path, 'y\n'), 10);
  await expect(waitUntilUnchanged(table)).rejects.toThrow(FileBusyError);
  clearInterval(timer);
});

test.skipIf(process.getuid?.() !== 0)('the owner stays (needs root, to give a file away)', async () => {
  chownSync(path, 1234, 4321);
  await replace(table, await stamp(), async (file) => file.appendFile('new'));
  expect(statSync(path)).toMatchObject({ uid: 1234, gid: 4321, size: 3 });
});
