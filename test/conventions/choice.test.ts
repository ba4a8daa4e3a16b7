// Which conventions are used, and where their files are looked for.
import { existsSync, mkdirSync, renameSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { CONVENTIONS } from '../../lib/config/index.ts';
import { listWords } from '../../lib/platform/index.ts';
import { Machine } from '../support/machine.ts';
import {
  directoryOf,
  here,
  holdAs,
  NAMES,
  placeOf,
  SAFE_GPU,
  SHARED_DIRECTORIES,
} from '../support/other-tools.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

/** A GPU that gpu_lock has taken is leased where gpu_lock counts. */
async function counts(env: Record<string, string> = {}): Promise<boolean> {
  const { code, stderr } = await machine.runCommand(['run', '--no-wait', '--', 'true'], { env });
  if (code !== 0 && code !== 75) throw new Error(stderr);
  return code === 75;
}

/** Configuration files of the machine and the user. */
function configure(machineText: string | null, userText: string | null): Record<string, string> {
  const env: Record<string, string> = {};
  const write = (path: string, text: string) => writeFileSync(path, text, { mode: 0o644 });
  if (machineText !== null) {
    env.GPU_OWNER_MACHINE_CONFIG = join(machine.directory, 'machine.yaml');
    write(env.GPU_OWNER_MACHINE_CONFIG, machineText);
  }
  if (userText !== null) {
    env.XDG_CONFIG_HOME = join(machine.directory, 'config');
    mkdirSync(join(env.XDG_CONFIG_HOME, 'gpu-owner'), { recursive: true });
    write(join(env.XDG_CONFIG_HOME, 'gpu-owner/config.yaml'), userText);
  }
  return env;
}

describe('among several choices', () => {
  beforeEach(async () => {
    await holdAs(machine, 'gpu_lock');
  });

  test('without a choice, auto holds', async () => expect(await counts()).toBe(true));

  test('the machine’s file sets the conventions', async () => {
    expect(await counts(configure('conventions: none\n', null))).toBe(false);
    expect(await counts(configure('conventions: [safe-gpu, gpu_lock]\n', null))).toBe(true);
    expect(await counts(configure('conventions: [safe-gpu]\n', null))).toBe(false);
  });

  test('the user’s file overrides the machine’s file', async () => {
    expect(await counts(configure('conventions: none\n', 'conventions: auto\n'))).toBe(true);
  });

  test('the environment overrides both files', async () => {
    const files = configure('conventions: auto\n', 'conventions: auto\n');
    expect(await counts({ ...files, GPU_OWNER_CONVENTIONS: 'none' })).toBe(false);
    expect(await counts({ ...files, GPU_OWNER_CONVENTIONS: 'safe-gpu, pid-files' })).toBe(false);
    expect(await counts({ ...files, GPU_OWNER_CONVENTIONS: '' })).toBe(true);
  });

  test('the choice holds in the library and in all commands that only look', async () => {
    const program = join(import.meta.dirname, 'fixtures/choices.mjs');
    const { stdout } = await machine.run([process.execPath, program]);
    expect(stdout.trim().split('\n')).toEqual([
      'leased free leased free',
      '0 1',
      expect.stringMatching(/^ERR_GPU_UNAVAILABLE leased by alice/),
      `ERR_INVALID_ARGUMENT conventions: 'flock' is not valid; use 'auto', 'none', or some of ${listWords(CONVENTIONS)}`,
    ]);
    for (const args of [
      ['status', '--json'],
      ['find', '--json'],
    ]) {
      const free = await machine.runCommand(args, { env: { GPU_OWNER_CONVENTIONS: 'none' } });
      expect(JSON.parse(free.stdout)[0].state).toBe('free');
    }
    expect((await machine.runCommand(['find'])).code).toBe(75);
  });
});

test.each([
  ['flock', "'flock' is not valid; use 'auto', 'none', or some of safe-gpu"],
  ['safe-gpu,auto', "'auto' is not valid"],
])('an unknown name is refused: %s', async (names, message) => {
  const env = { GPU_OWNER_CONVENTIONS: names };
  const { code, stderr } = await machine.runCommand(['run', '--', 'true'], { env });
  expect([code, stderr]).toEqual([64, expect.stringContaining(`GPU_OWNER_CONVENTIONS: ${message}`)]);
});

test('an unknown name in a file is refused with file and line', async () => {
  const env = configure('conventions: [safe-gpu, gpu-lock]\n', null);
  const { code, stderr } = await machine.runCommand(['status'], { env });
  expect([code, stderr]).toEqual([
    expect.any(Number),
    expect.stringMatching(/machine\.yaml:1: conventions: 'gpu-lock' is not valid; use .*gpu_lock/),
  ]);
});

test('auto makes the directories of the whole machine as their tools need them, and no other', async () => {
  const env = { HOME: machine.directory };
  await machine.runCommand(['run', '--', 'true'], { ...here(machine), env, umask: '077' });
  for (const { path } of SHARED_DIRECTORIES) {
    expect(statSync(placeOf(machine, path)).mode & 0o7777, path).toBe(0o777);
  }
  expect(statSync(join(placeOf(machine, '/tmp/safe_gpu'), SAFE_GPU)).mode & 0o7777).toBe(0o666);
  for (const path of [`${machine.directory}/.gpu_locks`, `/tmp/${SAFE_GPU}`]) {
    expect(existsSync(placeOf(machine, path)), path).toBe(false);
  }
});

test('where CUDA would have to be asked for GPU Scheduler’s numbers, auto leaves its directory to it', async () => {
  const mixed = new Machine('mixed');
  try {
    expect((await mixed.runCommand(['run', '--', 'true'])).stderr).toBe('');
    expect(existsSync(placeOf(mixed, '/var/tmp/gpu_lock'))).toBe(true);
    expect(existsSync(placeOf(mixed, '/tmp/gpu_locks'))).toBe(false);
    await mixed.runCommand(['run', '--', 'true'], { env: { CUDA_DEVICE_ORDER: 'PCI_BUS_ID' } });
    expect(existsSync(placeOf(mixed, '/tmp/gpu_locks'))).toBe(true);
  } finally {
    await mixed.close();
  }
});

test('naming a convention makes its directory', async () => {
  const named = { ...here(machine), env: { GPU_OWNER_CONVENTIONS: NAMES.join() } };
  const { code } = await machine.runCommand(['run', '--', 'true'], named);
  expect(code).toBe(0);
  const made = SHARED_DIRECTORIES.filter(({ name }) => name !== 'safe-gpu').map(({ path }) => path);
  for (const path of [...made, `${machine.directory}/.gpu_locks`]) {
    expect(statSync(placeOf(machine, path)).isDirectory(), path).toBe(true);
  }
  expect(existsSync(placeOf(machine, '/tmp/safe_gpu'))).toBe(false);
});

test('commands that only look create no directory', async () => {
  await machine.runCommand(['status'], { env: { GPU_OWNER_CONVENTIONS: CONVENTIONS.join() } });
  expect(existsSync(placeOf(machine, '/'))).toBe(false);
});

test('GPU_OWNER_CONVENTIONS_ROOT names another root', async () => {
  const root = join(machine.directory, 'host');
  mkdirSync(join(root, 'var/tmp/gpu_lock'), { recursive: true });
  writeFileSync(
    join(root, 'var/tmp/gpu_lock/gpu_0.json'),
    JSON.stringify({ user: 'bob', time: 1, uid: 0, owner: process.pid }),
  );
  expect(await counts()).toBe(false);
  expect(await counts({ GPU_OWNER_CONVENTIONS_ROOT: root })).toBe(true);
});

test('a directory that is a symbolic link doesn’t count', async () => {
  await holdAs(machine, 'gpu_lock');
  expect(await counts()).toBe(true);
  const directory = directoryOf(machine, 'gpu_lock');
  renameSync(directory, `${directory}.real`);
  symlinkSync(`${directory}.real`, directory);
  expect(await counts()).toBe(false);
});
