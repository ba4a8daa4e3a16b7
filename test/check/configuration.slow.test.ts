// Rules about what may be claimed: configuration files, CUDA_VISIBLE_DEVICES, and other tools' locks.
import { chmodSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Diagnosis, diagnose, diagnosePart, said } from '../support/doctor.ts';
import { Machine } from '../support/machine.ts';
import { placeOf } from '../support/other-tools.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine('mixed'); // a T400, an RTX 4090 and an A100
});
afterEach(() => machine.close());

function configured(text: string, env: Record<string, string> = {}): Promise<Diagnosis> {
  const path = join(machine.directory, 'config.yaml');
  writeFileSync(path, text);
  return diagnose(machine, { env: { GPU_OWNER_MACHINE_CONFIG: path, ...env } });
}

describe('configuration files', () => {
  test('no configuration file is no problem', async () => {
    const diagnosis = await diagnose(machine);
    expect(diagnosis.ids).toEqual([]);
    expect(said(diagnosis, 'configuration')).toMatch(/^No configuration file/);
  });

  test('a valid configuration file is named', async () => {
    const diagnosis = await configured('lockTimeout: 3s\n');
    expect(diagnosis.ids).toEqual([]);
    expect(said(diagnosis, 'configuration')).toMatch(/config\.yaml is valid/);
  });

  test('enforcement that is configured and doesn’t run is named', async () => {
    const diagnosis = await configured('enforce: {}\n');
    expect(diagnosis.ids).toEqual(['enforce-not-running']);
    expect(said(diagnosis, 'enforce-not-running')).toMatch(/hasn't looked since the machine was started/);
    writeFileSync(join(machine.lockDirectory, '../enforce.json'), '{}');
    expect((await configured('enforce: {}\n')).ids).toEqual([]);
  });

  test('rules for users and groups that this machine lacks are named', async () => {
    const users =
      'urgent: { users: [root, "4711"], groups: [root, no-group] }\nidle: { after: 1h, except: { users: [no-user] } }\n';
    const diagnosis = await configured(users);
    expect(diagnosis.ids).toEqual(['rule-without-user']);
    expect(said(diagnosis, 'rule-without-user')).toContain('the user no-user and group no-group, and this');
  });

  test.each([
    ['exclude: [0\n', /config\.yaml:\d+: not valid YAML/],
    ['exlcude: 0\n', /config\.yaml:1: there is no key 'exlcude'; did you mean 'exclude'\?/],
    ['minFreeMemory: much\n', /config\.yaml:1: minFreeMemory/],
  ])('a broken configuration file is a problem: %j', async (text, words) => {
    const diagnosis = await configured(text);
    expect(diagnosis).toMatchObject({ code: 1, ids: ['configuration-broken'] });
    expect(said(diagnosis, 'configuration-broken')).toMatch(words);
  });

  test('a configuration file that anybody may write to is a problem', async () => {
    const path = join(machine.directory, 'config.yaml');
    writeFileSync(path, '');
    chmodSync(path, 0o666);
    const diagnosis = await diagnose(machine, { env: { GPU_OWNER_MACHINE_CONFIG: path } });
    expect(said(diagnosis, 'configuration-broken')).toMatch(/everybody may write to it/);
  });

  test('thresholds of the configuration are shown', async () => {
    const diagnosis = await configured('minFreeMemory: 4GiB\n');
    expect(diagnosis).toMatchObject({ code: 0, ids: ['thresholds'] });
    expect(said(diagnosis, 'thresholds')).toMatch(/minFreeMemory: 4 GiB/);
  });

  test('a ban of a missing GPU is a warning', async () => {
    const diagnosis = await configured('exclude: [7, 0]\n');
    expect(diagnosis.ids).toEqual(['rule-without-gpu']);
    expect(said(diagnosis, 'rule-without-gpu')).toMatch(/^'7' in .*config\.yaml names no GPU/);
    // While one doesn't say who it is, it may be the one.
    machine.set('gpu=1', 'lost=on');
    expect((await configured('exclude: [7]\n')).ids).toEqual(['gpu-lost']);
  });
});

test('other tools’ locks are listed with their directories', async () => {
  const home = join(machine.directory, 'home');
  const away = join(machine.directory, 'away');
  for (const path of [home, away]) mkdirSync(path);
  mkdirSync(placeOf(machine, join(home, '.gpu_locks')), { recursive: true });
  const place = placeOf(machine, join(home, '.gpu_locks'));
  const of = async (cwd: string, HOME: string, env = {}) =>
    (await diagnosePart(machine, 'conventions', { cwd, env: { HOME, ...env } })).findings
      .filter(({ id }) => id === 'convention-in-use')
      .map(({ text }) => text)
      .join('\n');
  expect(await of(away, home)).toContain(`gpu-scheduler: ${place}; its locks are respected.`);
  expect(await of(away, home)).not.toContain('pid-files');
  expect(await of(home, away)).toContain(`pid-files: ${place}; its locks are respected.`);
  expect(await of(away, away)).not.toContain(home);
  expect(await of(away, home, { GPU_OWNER_CONVENTIONS: 'gpu_lock' })).toContain(
    `gpu-scheduler: ${place}; its locks don't count: it was not asked for.`,
  );
});

test('directories that claims of ours make are no sign of other tools', async () => {
  expect(said(await diagnosePart(machine, 'conventions'), 'conventions')).toContain(
    'No lock files of other tools.',
  );
  expect((await machine.runCommand(['run', '--placeholder', 'none', '--', 'true'])).code).toBe(0);
  const diagnosis = await diagnosePart(machine, 'conventions');
  expect(diagnosis.ids).not.toContain('convention-in-use');
  expect(said(diagnosis, 'conventions')).toMatch(
    /Locks of safe-gpu\b.* are respected\. Claims make their directories: /,
  );
});

test('a directory of another tool that is a symbolic link is named', async () => {
  const link = placeOf(machine, '/var/tmp/gpu_lock');
  mkdirSync(dirname(link), { recursive: true });
  symlinkSync(machine.directory, link);
  const found = async () => said(await diagnosePart(machine, 'conventions'), 'convention-in-use');
  expect(await found()).toContain(
    `gpu_lock: its locks don't count: ${link} is a symbolic link, which isn't followed.`,
  );
  mkdirSync(`${link}s`);
  expect(await found()).toContain(
    `gpu_lock: ${link}s; its locks are respected; ${link} is a symbolic link, which isn't followed.`,
  );
});
