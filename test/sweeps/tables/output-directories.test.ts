import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openSweep } from '../../../lib/sweeps/files/index.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { refuseUnusable } from '../../../lib/sweeps/tables/output-directories.ts';
import { taskId } from '../../../lib/sweeps/task/index.ts';

let project: string;
let queue: Queue;

beforeEach(async () => {
  project = mkdtempSync(join(tmpdir(), 'gpu-owner-directories-'));
  queue = await openQueue(`sqlite:${project}/queue.db`, project);
});

afterEach(async () => {
  await queue.close();
  chmodSync(project, 0o755);
  rmSync(project, { recursive: true, force: true });
});

const sweepTo = (outputDirectory: string) =>
  openSweep({ project, grid: ['seed=1..3'], command: ['true'], outputDirectory });

const check = async (outputDirectory: string) =>
  refuseUnusable(await sweepTo(outputDirectory), queue, project).then(
    () => 'well',
    ({ code, message }) => `${code}: ${message}`,
  );

test('a directory that is there, or can be made, will do, and is not made', async () => {
  mkdirSync(join(project, 'there'));
  symlinkSync('there', join(project, 'link'));
  const before = readdirSync(project);
  for (const directory of ['there', 'link', 'new', 'there/a/{seed}', join(project, 'absolute')])
    expect(await check(directory)).toBe('well');
  expect(readdirSync(project)).toEqual(before);
});

test('a file in place of a directory, or above it, is refused with cause and remedy', async () => {
  writeFileSync(join(project, 'file'), '');
  symlinkSync('nowhere', join(project, 'dangling'));
  expect(await check('file')).toMatch(
    /^ERR_CONFIGURATION: .*output_dir 'file' of 3 tasks \(\S+\/file is not a directory\)\. Nothing was added\. Name another/,
  );
  expect(await check('file/a/b')).toMatch(/'file\/a\/b' of 3 tasks \(\S+\/file is not a directory/);
  expect(await check('dangling')).toMatch(/is a symbolic link that leads nowhere/);
  expect(await check('file/{seed}')).toMatch(/'file\/1' of 1 task \(.*'file\/2'.*'file\/3'/);
});

test('a directory in which nothing is left to be written is not needed', async () => {
  await queue.enqueue((await sweepTo('old')).tasks());
  writeFileSync(join(project, 'old'), 'moved away');
  expect(await check('old')).toMatch(/of 3 tasks/);
  const rows = [1, 2, 3].map((seed) => ({ id: taskId({ seed }), result: {} }));
  await queue.importResults(rows.slice(1));
  expect(await check('old')).toMatch(/of 1 task /);
  await queue.cancel({ ids: [taskId({ seed: 1 })] });
  expect(await check('old')).toBe('well');
  // Their rows are to be written here, too.
  writeFileSync(join(project, 'other'), '');
  expect(await check('other')).toMatch(/of 3 tasks/);
});

test.skipIf(process.getuid?.() === 0)(
  'a read-only directory is refused unless it has the rows of all tasks [not as root]',
  async () => {
    const directory = join(project, 'kept');
    mkdirSync(directory);
    writeFileSync(join(directory, 'final_results.csv'), 'seed,loss\n1,0.5\n2,0.5\n');
    chmodSync(directory, 0o555);
    expect(await check('kept')).toMatch(/'kept' of 1 task \(\S+\/kept: permission denied\)/);
    chmodSync(directory, 0o755);
    writeFileSync(join(directory, 'final_results.csv'), 'seed,loss\n1,0.5\n2,0.5\n3,0.5\n');
    chmodSync(directory, 0o555);
    expect(await check('kept')).toBe('well');
    chmodSync(directory, 0o755);
  },
);
