// Anybody can put anything where other tools have their locks. Nothing of it may stop a claim, lead it elsewhere, or signal
// anybody.
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Machine, NOBODY, whyNotNobody } from '../support/machine.ts';
import {
  directoryOf,
  fileOf,
  here,
  makeDirectory,
  NAMES,
  type Name,
  placeOf,
  SAFE_GPU,
} from '../support/other-tools.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

/** Old enough not to be being written just now. */
function write(path: string, text: string): void {
  writeFileSync(path, text);
  utimesSync(path, new Date('2020-01-01'), new Date('2020-01-01'));
}

/** Claims all GPUs. */
async function claim(starting = {}, count = 1) {
  const started = performance.now();
  const { code, stdout, stderr } = await machine.runCommand(
    ['run', '--no-wait', '-n', String(count), '--', 'printenv', 'CUDA_VISIBLE_DEVICES'],
    { ...here(machine), ...starting },
  );
  expect(performance.now() - started).toBeLessThan(10_000);
  return { code, stdout, stderr };
}

/** Claims all GPUs of a machine that has one for each of these texts, in the file that a tool has for it. @returns what is left of the files */
async function claimBeside(tool: Name, texts: readonly string[]) {
  await machine.close();
  machine = new Machine(texts.length);
  const paths = texts.map((text, gpu) => {
    const path = fileOf(machine, tool, gpu);
    write(path, text);
    return path;
  });
  const { code, stderr } = await claim({}, texts.length);
  return { code, stderr, left: texts.filter((_, gpu) => existsSync(paths[gpu] as string)) };
}

const PIDS = [0, -1, -2, 2 ** 31, 2 ** 53, 1.5, '1', null, [1], true, 1e308];

describe('a PID that can’t be', () => {
  test('is nobody’s in a file of gpu_lock', async () => {
    const texts = PIDS.map((owner) => JSON.stringify({ user: 'eve', time: 1, uid: 0, owner }));
    expect(await claimBeside('gpu_lock', texts)).toMatchObject({ code: 0, left: [] });
  });

  test('is nobody’s in a file of pid-files', async () => {
    const texts = [
      '0',
      '-1',
      '-2',
      '2147483648',
      '9007199254740993',
      '1.5',
      '1e3',
      '0x1',
      'one',
      '',
      '\0\0',
      '1 2',
      '١',
    ];
    expect(await claimBeside('pid-files', texts)).toMatchObject({ code: 0 });
  });
});

test('a gpu_lock file that makes no sense is stale, and is replaced', async () => {
  const texts = [
    // The first GPU has this UUID.
    '{"gpu-owner": {"uuid": "GPU-00000000-0000-4000-8000-000000000000", "generation": 1e400}}',
    '',
    '{',
    '[]',
    'null',
    '"x"',
    '{"owner"',
    '{"gpu-owner": null, "owner": 4194304}',
    '{"gpu-owner": {"uuid": "../../x", "generation": 1}}',
    '\xff\xfe\0',
    `{"user": ${'['.repeat(20_000)}`,
  ];
  expect(await claimBeside('gpu_lock', texts)).toEqual({ code: 0, stderr: '', left: [] });
});

test('a file that somebody is just writing counts as held', async () => {
  writeFileSync(fileOf(machine, 'gpu_lock'), '{"user":');
  const { code, stderr } = await claim();
  expect([code, stderr]).toEqual([75, expect.stringContaining('(gpu_lock')]);
});

test('what a lock says of its holder is harmless to print', async () => {
  const user = '\u001b[31mevil\u001b]0;title\u0007\n\u202e';
  write(fileOf(machine, 'gpu_lock'), JSON.stringify({ user, time: -1e300, uid: 0, owner: process.pid }));
  const { code, stderr } = await claim();
  expect(code).toBe(75);
  expect(stderr).toMatch(/GPU 0: leased by evil \(gpu_lock, pid \d+/);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  expect(stderr).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u202e]/);
});

type Kind = 'dangling link' | 'link to a FIFO' | 'second name' | 'directory' | 'FIFO' | 'huge';
const KINDS: Kind[] = ['dangling link', 'link to a FIFO', 'second name', 'directory', 'FIFO', 'huge'];

function put(kind: Kind, path: string, text: string): string {
  const victim = join(machine.directory, 'victim');
  writeFileSync(victim, text);
  const fifo = join(machine.directory, 'fifo');
  execFileSync('mkfifo', ['-m', '666', fifo]);
  if (kind === 'dangling link') symlinkSync(join(machine.directory, 'made-by-us'), path);
  if (kind === 'link to a FIFO') symlinkSync(fifo, path);
  if (kind === 'second name') linkSync(victim, path);
  if (kind === 'directory') mkdirSync(path);
  if (kind === 'FIFO') execFileSync('mkfifo', ['-m', '666', path]);
  if (kind === 'huge') {
    writeFileSync(path, '');
    truncateSync(path, 2 ** 40);
  }
  return victim;
}

describe.each(KINDS)('with a %s where a lock file should be', (kind) => {
  test.each(NAMES)(
    'a claim goes on without %s’s file, and leaves what is there alone',
    async (name: Name) => {
      const path = fileOf(machine, name);
      const text =
        name === 'gpu_lock' ? JSON.stringify({ user: 'eve', owner: process.pid }) : `${process.pid}`;
      const victim = put(kind, path, text);
      const before = lstatSync(path);
      const { code, stderr } = await claim();
      expect(code).toBe(0); // the file holds nothing
      if (name !== 'gpu-scheduler' || kind !== 'huge')
        expect(stderr).toMatch(/warning: .*gpu_0\.(json|lock) can't be/);
      const after = lstatSync(path);
      expect([after.ino, after.size, after.nlink]).toEqual([before.ino, before.size, before.nlink]);
      expect(readFileSync(victim, 'utf8')).toBe(text);
      expect(existsSync(join(machine.directory, 'made-by-us'))).toBe(false);
    },
  );

  test('a claim goes on without safe-gpu’s lock, and leaves what is there alone', async () => {
    const path = join(makeDirectory(placeOf(machine, '/tmp/safe_gpu')), SAFE_GPU);
    const victim = put(kind, path, 'text');
    const { code, stderr } = await claim();
    expect(code).toBe(0);
    if (kind !== 'huge') expect(stderr).toMatch(/warning: .* can't be locked here/);
    expect(readFileSync(victim, 'utf8')).toBe('text');
    expect(existsSync(join(machine.directory, 'made-by-us'))).toBe(false);
  });
});

test.each(NAMES)('a link in place of %s’s directory is not followed', async (name) => {
  const directory = directoryOf(machine, name);
  const elsewhere = makeDirectory(join(machine.directory, 'elsewhere'));
  rmSync(directory, { recursive: true });
  symlinkSync(elsewhere, directory);
  expect(await claim()).toMatchObject({ code: 0, stderr: '' });
  expect(execFileSync('ls', [elsewhere], { encoding: 'utf8' })).toBe('');
});

const why = whyNotNobody();
describe.skipIf(why !== null)(`another user's files${why ? ` (${why})` : ''}`, () => {
  test('files that can’t be read count as held by their owner', async () => {
    const path = fileOf(machine, 'gpu_lock');
    write(path, '{}');
    chmodSync(path, 0o600);
    const { code, stderr } = await claim({ uid: NOBODY });
    expect(code).toBe(75);
    expect(stderr).toContain('GPU 0: leased by root (gpu_lock)');
  });

  test('files that can’t be removed are left, with a warning', async () => {
    const path = fileOf(machine, 'gpu_lock');
    write(path, '{}');
    chmodSync(dirname(path), 0o1777);
    const { code, stderr } = await claim({ uid: NOBODY });
    expect(code).toBe(0);
    expect(stderr).toMatch(/can't be made or replaced/);
    expect(readFileSync(path, 'utf8')).toBe('{}');
  });

  test('files that can only be read are locked all the same', async () => {
    const path = fileOf(machine, 'gpu-scheduler');
    write(path, '');
    chmodSync(path, 0o644);
    expect(await claim({ uid: NOBODY })).toMatchObject({ code: 0, stderr: '' });
  });
});
