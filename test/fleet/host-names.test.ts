// `--hosts` refuses wrong names before anything starts, and takes only valid answers for records.
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { parseRecords } from '../../lib/fleet/host-records.ts';
import { Machine, NOBODY, whyNotNobody } from '../support/machine.ts';

describe('--hosts', () => {
  let machine: Machine;
  let started: string;
  beforeEach(() => {
    machine = new Machine(1);
    started = join(machine.directory, 'started');
    writeFileSync(join(machine.directory, 'ssh'), `#!/bin/sh\ntouch ${started}\nexit 255\n`, { mode: 0o755 });
  });
  afterEach(() => machine.close());
  const run = (...args: string[]) =>
    machine.runCommand(args, { env: { GPU_OWNER_SSH: join(machine.directory, 'ssh') } });

  test.each([
    [['status', '--hosts=-oProxyCommand=touch x'], /not a valid host/],
    [['status', '--hosts=a,-lroot'], /'-lroot' is not a valid host/],
    [['status', '--hosts=root@-oX'], /not a valid host/],
    [['status', '--hosts', 'a\nb'], /not a valid host/],
    [['status', '--hosts', 'a b'], /not a valid host/],
    [['status', '--hosts', 'a:/dir'], /not a valid host/],
    [['run', '--on', 'a:/dir,-b', '--', 'true'], /not a valid host/],
    [['status', '--hosts', 'a;id'], /not a valid host/],
    [['status', '--hosts', '$(id)'], /not a valid host/],
    [['status', '--hosts', ''], /'' is not a valid host/],
    [['status', '--hosts', 'a,,b'], /'' is not a valid host/],
    [['status', '--hosts', 'x'.repeat(256)], /not a valid host/],
    [['status', '--hosts', 'a', '--timeout', '5'], /without its unit/],
    [['status', '--hosts', 'a', '--timeout', '0'], /needs some time/],
    [['status', '--timeout', '5s'], /belongs to --hosts/],
    [['status', '--hosts', 'a', '--max-power', 'much'], /--max-power/],
    [['find', '--hosts', 'a', '--visible-devices', 'index'], /named by UUID/],
    [['queue', '--hosts', '-a'], /--hosts needs a value/],
    [['jobs', '--hosts', 'a b'], /not a valid host/],
    [['submit', '--on', 'a', '--after', '2,any:3', '--', 'true'], /only this machine knows that job/],
    [['submit', '--on', 'a', '--after-ok', 'any:3', '--', 'true'], /only this machine knows that job/],
  ])('%j is refused, and no ssh started', async (args, message) => {
    const { code, stdout, stderr } = await run(...args);
    expect({ code, stdout, stderr }).toEqual({
      code: 64,
      stdout: '',
      stderr: expect.stringMatching(message),
    });
    expect(existsSync(started)).toBe(false);
  });

  test.skipIf(whyNotNobody() !== null).each([
    ['run', '--for=10h'],
    ['submit', '--for=10h'],
    ['run', '--urgent'],
  ])('%s --on HOST %s is for the host to allow, not for this machine', async (name, option) => {
    machine.configure('limits: { for: 4h }\nurgent: { users: [alice] }\n');
    const words = [name, '--on', 'a', option, '--', 'true'];
    const env = { GPU_OWNER_SSH: join(machine.directory, 'ssh') };
    const { code, stderr } = await machine.runCommand(words, { uid: NOBODY, umask: '077', env });
    // The stand-in for ssh was started, and may not write there.
    expect({ code, stderr }).toEqual({
      code: name === 'run' ? 255 : 69,
      stderr: expect.stringContaining(started),
    });
  });

  test.each(['a', 'alice@gpu-3.example.org', '10.0.0.3', 'fe80::1%eth0', 'rüstig', '__proto__'])(
    '%s is a name of a host',
    async (name) => {
      const { code, stdout } = await run('status', '--hosts', name, '--json');
      expect(code).toBe(69);
      expect(Object.entries(JSON.parse(stdout))).toMatchObject([
        [name, { error: { code: 'ERR_HOST_UNREACHABLE' } }],
      ]);
      expect(existsSync(started)).toBe(true);
    },
  );
});

describe('records of other machines', () => {
  const gpu = { index: 0, uuid: 'GPU-1', name: 'A', state: 'free', memory: {} };
  const gpus = (...changes: object[]) =>
    parseRecords('gpus', JSON.stringify(changes.map((change) => ({ ...gpu, ...change }))));

  test('missing fields are null, unknown ones are ignored, whatever they have', () => {
    const deep = JSON.parse('['.repeat(100) + ']'.repeat(100));
    const [found] = gpus({ energy: { joules: 3 }, deep }) as object[];
    expect(found).toMatchObject({ ...gpu, instance: null, reason: null, memory: { usedBytes: null } });
    for (const unknown of ['energy', 'deep']) expect(found).not.toHaveProperty(unknown);
  });

  test('texts are harmless', () => {
    const text = 'a\u001b[2Jb\u202ec\n';
    expect(gpus({ name: text, reason: text })).toMatchObject([{ name: 'abc', reason: 'abc' }]);
    expect(gpus({ reason: 'x'.repeat(1e6) })).toMatchObject([
      { reason: expect.stringMatching(/^x{1999}…$/) },
    ]);
    expect(JSON.stringify(gpus({ 'a\u001b[2J': 1 }))).not.toContain('2J');
  });

  test.each([
    [{ index: -1 }, 'gpus[0].index'],
    [{ index: 1.5 }, 'gpus[0].index'],
    [{ index: 1e9 }, 'gpus[0].index'],
    [{ uuid: null }, 'gpus[0].uuid'],
    [{ state: 'constructor of\nall' }, 'gpus[0].state'],
    [{ memory: null }, 'gpus[0].memory'],
  ])('%j is refused', (change, where) => {
    expect(gpus(change)).toBe(`${where} has an impossible value`);
  });

  test('one absurd measurement hides no GPU', () => {
    expect(gpus({ powerWatts: -5, temperatureCelsius: 'hot', memory: { usedBytes: 1e300 } })).toMatchObject([
      { powerWatts: null, temperatureCelsius: null, memory: { usedBytes: null } },
    ]);
  });

  test('shares are shown as far as they make sense', () => {
    const share = { user: 'a\u001b[2Jnn', uid: 1, pid: 2, since: 'soon', bytes: 3, usedBytes: -1 };
    const shares = [null, 7, { user: 5, bytes: 3 }, { ...share, bytes: 'all' }, share];
    expect(gpus({ shares }, { shares: 'none' }, {})).toMatchObject([
      { shares: [{ user: 'ann', uid: 1, pid: 2, since: null, bytes: 3, usedBytes: null }] },
      { shares: [] },
      { shares: [] },
    ]);
  });

  test('what is too much or of another kind is refused', () => {
    expect(gpus(...Array.from({ length: 1_001 }, () => ({})))).toMatch(/impossible/);
    for (const json of ['', '{}', 'null', '3', '[null]', '[[]]', '"x"', '['.repeat(1e6)])
      expect(parseRecords('gpus', json), json.slice(0, 9)).toBeTypeOf('string');
  });

  test('a job of an older version has no field that it lacks', () => {
    const job = { id: 1, state: 'running', count: 1, command: 'x', user: 'u' };
    expect(parseRecords('jobs', JSON.stringify([{ ...job, idle: 'yes' }, job]))).toMatchObject([
      { idle: null, progress: null, after: [] },
      { idle: null, name: null, gpus: [] },
    ]);
  });

  test('a time that nobody can mean is none', () => {
    const job = {
      id: 1,
      state: 'running',
      count: 1,
      command: 'x',
      user: 'u',
      started: 'soon',
      ended: '+99999-01-01T00:00Z',
    };
    expect(parseRecords('jobs', JSON.stringify([job]))).toMatchObject([
      { started: null, ended: null, gpus: [] },
    ]);
  });
});
