import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, renameSync, rmSync, unlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { native } from '../../lib/native.ts';
import { lockedFiles } from '../../lib/platform/index.ts';
import { LeaseFiles } from '../../lib/status/inspection.ts';
import { python } from '../support/machine.ts';
import { WAIT_TIMEOUT_MS } from '../support/time.ts';

const UUID = 'GPU-1';
const GPU = { uuid: UUID, parent: null };
/** Locks the first byte of a file, as the holder of a lease does. */
const LOCK = `import fcntl, struct, sys
file = open(sys.argv[1], "a")
fcntl.fcntl(file, 37, struct.pack("hhqqi4x", 1, 0, 0, 1, 0))
print("locked", flush=True)
sys.stdin.read()`;

let root: string;
let files: LeaseFiles;
const holders: ChildProcess[] = [];
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'leases-'));
  for (const name of ['first', 'other']) mkdirSync(join(root, name));
  files = new LeaseFiles();
});
afterEach(() => {
  files.release();
  for (const holder of holders.splice(0)) holder.kill('SIGKILL');
  rmSync(root, { recursive: true });
});

const fileIn = (directory: string) => join(root, directory, `${UUID}.lease`);

async function lock(directory: string): Promise<ChildProcess> {
  const child = spawn(python, ['-c', LOCK, fileIn(directory)], { stdio: ['pipe', 'pipe', 'inherit'] });
  holders.push(child);
  await once(child.stdout, 'data');
  return child;
}

function look(): (number | undefined)[] {
  const all = [join(root, 'first'), join(root, 'other')];
  const openForProbe = (name: string, path = '') => native().fileOpenForProbe(join(path, name));
  files.look({ all, openForProbe, itself: () => -1 }, [UUID], () => []);
  // Not of all processes: on a busy machine, the search for these ends before it is done.
  const locked = lockedFiles(
    WAIT_TIMEOUT_MS,
    holders.map(({ pid = 0 }) => pid),
  );
  return files.owners(GPU, locked).map(({ pid }) => pid);
}

test.each([
  ['first', 'other'],
  ['other', 'first'],
])('the lease in the directory %s counts, and not a later lock in the directory %s', async (one, another) => {
  const holder = await lock(one);
  expect(look()).toEqual([holder.pid]);
  const later = await lock(another);
  expect(look()).toEqual([holder.pid]);
  holder.stdin?.end();
  await once(holder, 'exit');
  expect(look()).toEqual([later.pid]);
  later.stdin?.end();
  await once(later, 'exit');
  expect(look()).toEqual([]);
  expect(files.has(UUID)).toBe(false);
});

test.each([
  ['removed', unlinkSync],
  ['renamed', (path: string) => renameSync(path, `${path}.old`)],
])('the holder of a file that was %s is one as long as its lock lasts', async (_, take) => {
  const holder = await lock('first');
  look();
  take(fileIn('first'));
  expect(look()).toEqual([holder.pid]);
  // The newcomer may be the one who holds the GPU by right: neither is accused.
  const later = await lock('first');
  expect(look()).toEqual([holder.pid, later.pid]);
  holder.stdin?.end();
  await once(holder, 'exit');
  expect(look()).toEqual([later.pid]);
});
