import { execFileSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, test } from 'vitest';
import { loadConfiguration, loadNotificationTargets, mergeCriteria } from '../../lib/config/configuration.ts';
import { judge } from '../../lib/gpus/judge.ts';
import { actAs } from '../support/bundle.ts';
import { because, noMounts } from '../support/doctor.ts';
import { command, Machine, NOBODY, whyNotNobody } from '../support/machine.ts';
import { GIB, makeGPU, refusal } from '../support/snapshots.ts';
import { processorTime } from '../support/time.ts';

let base: string;
let machine: string;
let user: string;
let env: NodeJS.ProcessEnv;

beforeEach(() => {
  base = mkdtempSync(join(tmpdir(), 'configuration-'));
  machine = join(base, 'machine.yaml');
  user = join(base, 'home/.config/gpu-owner/config.yaml');
  mkdirSync(dirname(user), { recursive: true });
  env = { GPU_OWNER_MACHINE_CONFIG: '/dev/null', HOME: join(base, 'home') };
});
afterEach(() => rmSync(base, { recursive: true, force: true }));

function write(path: string, content: string | Buffer): void {
  writeFileSync(path, content);
  chmodSync(path, 0o644);
  if (path === machine) env.GPU_OWNER_MACHINE_CONFIG = machine;
}

const load = () => loadConfiguration(env);
const failure = () => refusal(load, 'ERR_CONFIGURATION');

describe('urgent', () => {
  it('names users and groups, in the file of the machine only', () => {
    write(machine, 'urgent: { users: [alice, 1003], groups: [staff] }');
    // A file that a user names permits nothing to real GPUs.
    expect(load().urgent).toBeUndefined();
    env.GPU_OWNER_SIMULATE = '1';
    expect(load().urgent).toEqual({ users: ['alice', '1003'], groups: ['staff'] });
    write(user, 'urgent: { users: [bob] }');
    expect(failure()).toContain("urgent is for the machine's file only: nobody permits this to himself");
  });

  it.each([
    ['urgent: alice', 1, 'urgent: it must have keys and values, such as { users: [alice], groups: [staff] }'],
    ['urgent:\n  user: [alice]', 2, "urgent: there is no key 'user'; did you mean 'users'?"],
    ['urgent:\n  users: alice', 2, 'urgent.users: it must be a list of names'],
    ['urgent:\n  groups: [{ a: b }]', 2, 'urgent.groups: it must be a list of names'],
  ])('is refused with its line: %j', (text, line, why) => {
    write(machine, text);
    expect(failure()).toContain(`machine.yaml:${line}: ${why}`);
  });
});

it.each([
  ['hostGroups:\n  lab: a', 2, 'hostGroups.lab: it must be a list of names'],
  ['hostGroups:\n  lab: []', 2, 'hostGroups.lab: it has no hosts; name some, or remove it'],
  ['hostGroups:\n  lab: [a, big]\n  big: [b]', 2, "hostGroups.lab: 'big' is a group itself; write its hosts"],
])('a group that stands for no hosts is refused: %j', (text, line, why) => {
  write(machine, text);
  expect(failure()).toContain(`machine.yaml:${line}: ${why}`);
});

describe('bookings', () => {
  it('names who may book, in the file of the machine only', () => {
    write(machine, 'bookings: { gpus: 4, ahead: 2d, users: [alice], groups: [1003] }');
    expect(load().bookings).toBeUndefined();
    env.GPU_OWNER_SIMULATE = '1';
    expect(load().bookings).toEqual({ gpus: 4, aheadMs: 172_800_000, users: ['alice'], groups: ['1003'] });
    write(user, 'bookings: { users: [bob] }');
    expect(failure()).toContain("bookings is for the machine's file only");
  });

  it.each([
    ['bookings: 4', 1, 'bookings: it must have keys and values'],
    ['bookings:\n  gpu: 4', 2, "bookings: there is no key 'gpu'; did you mean 'gpus'?"],
    ['bookings:\n  gpus: 0', 2, 'bookings.gpus: 0 is not a number of GPUs'],
    ['bookings:\n  ahead: 14', 2, "bookings.ahead: '14' is not a duration without its unit"],
    ['bookings:\n  users: alice', 2, 'bookings.users: it must be a list of names'],
  ])('is refused with its line: %j', (text, line, why) => {
    write(machine, text);
    expect(failure()).toContain(`machine.yaml:${line}: ${why}`);
  });
});

describe('enforce', () => {
  it('has defaults, and is for the file of the machine only', () => {
    write(machine, 'enforce: {}');
    expect(load().enforce).toBeUndefined();
    env.GPU_OWNER_SIMULATE = '1';
    const none = { users: [], groups: [], programs: [] };
    expect(load().enforce).toEqual({ claims: 'optional', graceMs: 300_000, containers: false, except: none });
    write(machine, 'enforce: { claims: required, grace: 10m, containers: true, except: { users: [1003] } }');
    const except = { ...none, users: ['1003'] };
    expect(load().enforce).toEqual({ claims: 'required', graceMs: 600_000, containers: true, except });
    write(user, 'enforce: {}');
    expect(failure()).toContain("enforce is for the machine's file only");
  });

  it.each([
    ['enforce: true', 1, 'enforce: it must have keys and values'],
    ['enforce:\n  claim: required', 2, "enforce: there is no key 'claim'; did you mean 'claims'?"],
    ['enforce:\n  claims: always', 2, "enforce.claims: 'always' is not valid; use 'optional' or 'required'"],
    ['enforce:\n  grace: 5', 2, "enforce.grace: '5' is not a duration without its unit"],
    ['enforce:\n  containers: maybe', 2, "enforce.containers: 'maybe' is neither true nor false"],
    ['enforce:\n  except: { user: [a] }', 2, "enforce.except: there is no key 'user'"],
  ])('is refused with its line: %j', (text, line, why) => {
    write(machine, text);
    expect(failure()).toContain(`machine.yaml:${line}: ${why}`);
  });
});

describe('limits', () => {
  it('are for everybody, users and groups; 0 is none', () => {
    write(
      machine,
      'limits:\n  gpus: 4\n  for: 24h\n  users: { alice: { gpus: 8, for: 7d }, 1003: { for: 0 } }\n  groups: { staff: { gpus: 0 }, students: { together: 8 } }\n',
    );
    write(user, 'limits: { gpus: 2 }');
    const { limits, ownLimits } = load();
    expect(limits).toEqual({
      everybody: { gpus: 4, ms: 86_400_000 },
      users: new Map([
        ['alice', { gpus: 8, ms: 604_800_000 }],
        ['1003', { ms: Number.POSITIVE_INFINITY }],
      ]),
      groups: new Map<string, object>([
        ['staff', { gpus: Number.POSITIVE_INFINITY }],
        ['students', { together: 8 }],
      ]),
    });
    expect(ownLimits).toMatchObject({ everybody: { gpus: 2 } });
  });

  it.each([
    ['limits: 4', 1, 'limits: it must have keys and values, such as { gpus: 4, for: 24h }'],
    ['limits:\n', 1, 'limits: it must have keys and values'],
    ['limits:\n  gpu: 4', 2, "limits: there is no key 'gpu'; did you mean 'gpus'?"],
    [
      'limits:\n  gpus: many',
      2,
      "limits.gpus: 'many' is not a number of GPUs; use 1, 2, …, or 0 for no limit",
    ],
    ['limits:\n  gpus: -1', 2, 'limits.gpus: -1 is not a number of GPUs'],
    ['limits:\n  for: 24', 2, "limits.for: '24' is not a duration without its unit"],
    ['limits:\n  users:\n    alice: 8', 3, 'limits.users.alice: it must have keys and values'],
    [
      'limits:\n  users:\n    alice:\n      gpus: 1\n    alice:\n      gpus: 2',
      5,
      'limits.users.alice is given twice',
    ],
    ['limits:\n  groups: { staff: { nice: 4 } }', 2, "limits.groups.staff: there is no key 'nice'"],
    [
      'limits:\n  groups: { staff: { together: all } }',
      2,
      "limits.groups.staff.together: 'all' is not a number of GPUs",
    ],
    [
      'limits:\n  groups: { staff: { together: [2] } }',
      2,
      'limits.groups.staff.together: it must be a single value',
    ],
    ['limits:\n  gpus:', 2, 'limits.gpus: it has no value'],
    ['limits:\n  together: 8', 2, "limits: there is no key 'together'"],
    ['limits:\n  users: { alice: { together: 8 } }', 2, "limits.users.alice: there is no key 'together'"],
  ])('are refused with their line: %j', (text, line, why) => {
    write(machine, text);
    expect(failure()).toContain(`machine.yaml:${line}: ${why}`);
  });

  it('of users and groups are for the machine’s file', () => {
    write(user, 'limits:\n  users: { alice: { gpus: 8 } }');
    expect(failure()).toContain("config.yaml:2: limits: there is no key 'users'");
  });
});

describe('configuration files', () => {
  it('may be missing', () => {
    expect(load()).toEqual({ files: [], thresholds: {}, devices: [], exclude: [] });
    expect(loadConfiguration({ ...env, HOME: '/nonexistent' }).files).toEqual([]);
    expect(loadConfiguration({ ...env, HOME: '/etc/passwd' }).files).toEqual([]);
  });

  it('may be empty', () => {
    for (const text of ['', '\n', '# nothing\n', '---\n', '\ufeff# with a mark\n', '{}']) {
      write(user, text);
      expect(load().files).toEqual([user]);
      expect(load().thresholds).toEqual({});
    }
  });

  it("are the machine's and the user's", () => {
    write(
      machine,
      'minFreeMemory: 20GiB\nlockDirectory: /run/lock/gpu-owner\nlockTimeout: 5s\nplaceholder: none\n',
    );
    write(
      user,
      'maxPower: 80\nplaceholder: keep\nvisibleDevices: index\nconventions: [safe-gpu, gpu_lock]\n',
    );
    expect(load()).toEqual({
      files: [machine, user],
      thresholds: { minFreeMemory: 20 * GIB, maxPower: 80 },
      devices: [],
      exclude: [],
      placeholder: 'keep',
      visibleDevices: 'index',
      conventions: ['safe-gpu', 'gpu_lock'],
      lockDirectory: '/run/lock/gpu-owner',
      lockTimeout: 5000,
    });
  });

  it('are found where XDG_CONFIG_HOME says, unless it is relative', () => {
    mkdirSync(join(base, 'xdg/gpu-owner'), { recursive: true });
    write(join(base, 'xdg/gpu-owner/config.yaml'), 'maxPower: 1');
    write(user, 'maxPower: 2');
    env.XDG_CONFIG_HOME = join(base, 'xdg');
    expect(load().thresholds.maxPower).toBe(1);
    env.XDG_CONFIG_HOME = 'xdg';
    expect(load().thresholds.maxPower).toBe(2);
  });

  it('must exist where the variable names one', () => {
    env.GPU_OWNER_MACHINE_CONFIG = machine;
    expect(failure()).toContain("GPU_OWNER_MACHINE_CONFIG names this file, and it doesn't exist");
  });

  it('are not waited for when they are something else', () => {
    execFileSync('mkfifo', [user]);
    chmodSync(user, 0o644);
    expect(failure()).toContain('not a regular file');
    rmSync(user);
    mkdirSync(user);
    expect(failure()).toContain('it is not a regular file');
  });

  it('must be small, in UTF-8, and not writable by everybody', () => {
    write(user, `# ${'x'.repeat(70_000)}`);
    expect(failure()).toContain('larger than 64 KiB');
    write(user, Buffer.from([0x61, 0xff, 0xfe]));
    expect(failure()).toContain('not UTF-8');
    for (const path of [user, machine]) {
      write(user, '');
      write(path, 'maxPower: 80');
      chmodSync(path, 0o666);
      expect(failure()).toMatch(new RegExp(`^${path}: every user may write to it`));
    }
  });

  it.runIf(process.geteuid?.() === 0)("must belong to root where they are the machine's", () => {
    write(machine, 'maxPower: 80');
    chownSync(machine, 12345, 12345);
    expect(failure()).toContain('it belongs to uid 12345');
  });

  it.skipIf(process.geteuid?.() === 0)('must be readable', () => {
    write(user, 'maxPower: 80');
    chmodSync(user, 0);
    expect(failure()).toContain('no permission to read it');
  });

  const whyNot = whyNotNobody();
  it.skipIf(whyNot !== null)(
    `that can't be read are told from files in a home that isn't ours${because(whyNot)}`,
    async () => {
      type Module = typeof import('../../lib/config/configuration.ts');
      const asNobody = actAs<Module>(NOBODY, 'lib/config/configuration.ts');
      chmodSync(base, 0o755);
      write(user, 'maxPower: 80');
      chmodSync(user, 0o600);
      await expect(asNobody('loadConfiguration', env)).rejects.toMatchObject({
        code: 'ERR_CONFIGURATION',
        message: expect.stringContaining('no permission to read it'),
      });
      chmodSync(join(base, 'home'), 0o700);
      expect((await asNobody('loadConfiguration', env)).files).toEqual([]);
    },
  );
});

describe('in a configuration file', () => {
  it.each([
    ['maxPowr: 80', ":1: there is no key 'maxPowr'; did you mean 'maxPower'?"],
    ['# x\n\nmin_free_memory: 1', ":3: there is no key 'min_free_memory'; did you mean 'minFreeMemory'?"],
    ['colour: red', ":1: there is no key 'colour'; the known ones are exclude,"],
    ['force: true', ":1: there is no key 'force'"],
    ['__proto__: 1', ":1: there is no key '__proto__'"],
    ['constructor: 1', ":1: there is no key 'constructor'"],
    ['maxPower: 80\nminFreeMemory: lots', ":2: minFreeMemory: 'lots' is not a size"],
    ['minFreeMemory: 4', ":1: minFreeMemory: 4 is not a size without its unit; use '4GiB' or '4MiB'"],
    ['jobLogSize: 100', ":1: jobLogSize: 100 is not a size without its unit; use '100GiB' or '100MiB'"],
    ['minFreeMemory:\n  - 1', ':2: minFreeMemory: a list is not a size'],
    ['minFreeMemory: .nan', ':1: minFreeMemory: NaN is not a size'],
    ['maxPower: .inf', ':1: maxPower: Infinity is not'],
    ['maxPower: -1', ':1: maxPower: -1 is not'],
    ['maxPower: 080x', ":1: maxPower: '080x' is not"],
    ['allowProcesses: yes', ":1: allowProcesses: 'yes' is neither true nor false"],
    ['devices: []', ':1: devices: an empty list'],
    ['devices: 3-1', ":1: devices: '3-1' runs backwards"],
    ['exclude: 1.5', ':1: exclude: 1.5'],
    ['exclude: [0, [1]]', ':1: exclude: the entries of a list must be single values'],
    ['exclude:\n  gpu: 1', ':2: exclude: it must be a single value or a list'],
    ['exclude: [~]', ':1: exclude: the entries of a list'],
    ['maxPower:', ':1: maxPower: it has no value'],
    ['maxPower: ~', ':1: maxPower: it has no value'],
    ['placeholder: maybe', ":1: placeholder: 'maybe' is not valid; use 'auto', 'keep' or 'none'"],
    ['visibleDevices: 0', ':1: visibleDevices: 0 is not valid'],
    ['conventions: [auto]', ":1: conventions: 'auto' is not valid"],
    ['conventions: ../x', ":1: conventions: '../x' is not valid"],
    ['maxPower: 1\nmaxPower: 2', ':2: maxPower is given twice'],
    ['maxPower: "80', ':1: not valid YAML'],
    ['maxPower: [1\nx: 2', 'not valid YAML'],
    ['\tmaxPower: 1', ':1: not valid YAML'],
    ['maxPower: 1\n---\nmaxPower: 2', 'not valid YAML'],
    ['maxPower: !!js/function "x"', ':1: not valid YAML'],
    ['- maxPower', ':1: it must have lines such as'],
    ['maxPower', ':1: it must have lines such as'],
    ['? [a]\n: 1', ":1: there is no key ''"],
    ['"\\e[2Jx": 1', ":1: there is no key 'x'"],
    ['exclude: &a [0]\ndevices: *a', ':2: devices: '],
    ['exclude: &a 0\ndevices: [*a]', ':2: devices: '],
    ['<<: {maxPower: 1}', ":1: there is no key '<<'"],
    [
      'jobsKeptFor: 7',
      ":1: jobsKeptFor: '7' is not a duration without its unit; use '7s', '7m', '7h' or '7d'",
    ],
    ['minFreeMemory: 4', ":1: minFreeMemory: 4 is not a size without its unit; use '4GiB' or '4MiB'"],
  ])('%j is refused', (text, message) => {
    write(user, text);
    const said = failure();
    expect(said).toContain(message);
    expect(said.startsWith(user)).toBe(true);
    expect(said).not.toContain('\x1b');
  });

  it("a user's file can't set what all users must share, and says why", () => {
    write(user, 'lockDirectory: /tmp/mine');
    expect(failure()).toContain(
      ":1: lockDirectory is for the machine's file only: all users must lock in the same directory",
    );
    write(user, 'lockTimeout: 1s');
    expect(failure()).toContain("lockTimeout is for the machine's file only");
  });

  describe('notification settings', () => {
    const URL_OF_HOOK = 'https://hooks.example.com/services/T0/secret-part';
    const targets = () => {
      const { command, webhook } = loadNotificationTargets(env);
      return { command, webhook: webhook?.href ?? null };
    };

    it("the user's command replaces the machine's, and a webhook is read", () => {
      expect(targets()).toEqual({ command: null, webhook: null });
      write(machine, 'notifyCommand: [/usr/local/bin/notify, "5"]');
      expect(targets()).toEqual({ command: ['/usr/local/bin/notify', '5'], webhook: null });
      write(user, `notifyCommand: [mail, me]\nnotifyWebhook: ${URL_OF_HOOK}`);
      chmodSync(user, 0o600);
      expect(targets()).toEqual({ command: ['mail', 'me'], webhook: URL_OF_HOOK });
      write(user, 'notifyCommand: []');
      expect(targets()).toEqual({ command: null, webhook: null });
    });

    it("a webhook's URL is no part of the other settings", () => {
      write(user, `notifyWebhook: ${URL_OF_HOOK}\nmaxPower: 80`);
      chmodSync(user, 0o600);
      expect(JSON.stringify(load())).not.toContain('hooks');
    });

    it("a file with a webhook's URL must be private to its user", () => {
      write(user, `notifyWebhook: ${URL_OF_HOOK}`);
      for (const mode of [0o644, 0o640, 0o604, 0o620]) {
        chmodSync(user, mode);
        expect(failure()).toBe(
          `${user}: others may read it, and the URL of notifyWebhook is a secret; chmod 600`,
        );
      }
      chmodSync(user, 0o400);
      expect(targets().webhook).toBe(URL_OF_HOOK);
      write(machine, `notifyWebhook: ${URL_OF_HOOK}`);
      expect(failure()).toContain(
        `${machine}:1: notifyWebhook is for a user's file only: its URL is a secret`,
      );
    });

    it.each([
      'notifyWebhook: http://corp.test/t0k3n',
      'notifyWebhook: http://127.0.0.1.example.com/t0k3n',
      'notifyWebhook: ftp://corp.test/t0k3n',
      'notifyWebhook: file:///etc/t0k3n',
      'notifyWebhook: corp.test/t0k3n',
      'notifyWebhook: [https://corp.test/t0k3n]',
      `notifyWebhook: https://corp.test/t0k3n${'x'.repeat(3000)}`,
      'notifyWebhook: "https://corp.test/t0k3n',
      'notifyWebhook: |https://corp.test/t0k3n',
      'notifyWebhook: &t0k3n https://corp.test/t0k3n\nmaxPower: *t0k3',
      'notifyWebhook: !t0k3n https://corp.test/t0k3n',
      'notifyWebhook: @t0k3n',
      'notifyWebhook: https://corp.test/t0k3n: x',
      'notifyWebhook:https://corp.test/t0k3n\nmaxPower: 1',
      '{notifyWebhook:https://corp.test/t0k3n}',
      '{notifyWebhook:https://corp.test/t0k3n: 1}',
      'notifyWebhook: https://corp.test/t0k3n\n  t0k3n: x\n y',
    ])('a wrong webhook is refused without a word of its URL: %j', (text) => {
      write(user, text);
      chmodSync(user, 0o600);
      expect(failure()).not.toMatch(/t0k3|corp/);
    });

    it('a webhook on this machine needs no encryption', () => {
      for (const host of ['127.0.0.1:8080', 'localhost', '[::1]:80']) {
        write(user, `notifyWebhook: http://${host}/x`);
        chmodSync(user, 0o600);
        expect(targets().webhook).toMatch(/^http:/);
      }
    });

    it.each(['mail', '[mail, 5]', '[[mail]]', '[""]', '{mail: me}', '["a\\0b"]', 'true'])(
      'a command must be a list of words, not %s',
      (value) => {
        write(user, `notifyCommand: ${value}`);
        expect(failure()).toMatch(/:1: notifyCommand: /);
      },
    );
  });

  it("the machine's lock directory must be an absolute path", () => {
    for (const value of ['relative', '""', '1', '[/a]', '"/a\\0b"']) {
      write(machine, `lockDirectory: ${value}`);
      expect(failure()).toContain('lockDirectory: ');
    }
  });

  it('texts that are meant to harm are refused at once', async () => {
    const levels = Array.from(
      { length: 9 },
      (_, i) => `a${i}: &a${i} [${Array(9).fill(i ? `*a${i - 1}` : 'x')}]`,
    );
    const texts = [
      levels.join('\n'),
      `exclude: ${'['.repeat(60_000)}`,
      `exclude: ${'['.repeat(9_000)}${']'.repeat(9_000)}`,
      '- '.repeat(30_000),
      '? '.repeat(30_000),
      Array.from({ length: 5000 }, (_, i) => `key${i}: 1`).join('\n'),
      `exclude: ${'&a '.repeat(20_000)}`,
      `exclude: "${'\\x'.repeat(30_000)}`,
      '\0'.repeat(60_000),
    ];
    const time = await processorTime(() => {
      for (const text of texts) {
        write(user, text);
        expect(failure().length).toBeLessThan(1000);
      }
    });
    expect(time).toBeLessThan(20_000);
  });
});

describe('with files and a call', () => {
  const judged = (gpu: ReturnType<typeof makeGPU>, options: object = {}) =>
    judge(gpu, { lease: null, visible: null, criteria: mergeCriteria(options, load()) });

  it('bans add up, and nobody lifts them', () => {
    write(machine, 'exclude: [0, T400]');
    write(user, 'exclude: [GPU-1, "5-6", "*3090"]\ndevices: 0-9');
    const options = { devices: [0, 1, 2, 3, 4, 5], exclude: 4, force: true };
    expect(judged(makeGPU(0), options).reason).toBe(`banned by ${machine}`);
    expect(judged(makeGPU(1), options).reason).toBe(`banned by ${user}`);
    expect(judged(makeGPU(2, { name: 'NVIDIA T400' }), options).reason).toBe(`banned by ${machine}`);
    expect(judged(makeGPU(2, { name: 'RTX 3090' }), options).reason).toBe(`banned by ${user}`);
    expect(judged(makeGPU(4), options).reason).toBe('excluded by exclude');
    expect(judged(makeGPU(5), options).state).toBe('excluded');
    expect(judged(makeGPU(3), options).state).toBe('free');
  });

  it('devices of machine, user and call intersect', () => {
    write(machine, 'devices: 0-2');
    write(user, 'devices: [1, 2, 3]');
    const free = [0, 1, 2, 3, 4].filter((index) => judged(makeGPU(index)).state === 'free');
    expect(free).toEqual([1, 2]);
    expect(
      [0, 1, 2, 3, 4].filter((index) => judged(makeGPU(index), { devices: '2-4' }).state === 'free'),
    ).toEqual([2]);
    expect(judged(makeGPU(3), { devices: '2-4' }).reason).toBe(
      `not among the devices that ${machine} allows`,
    );
  });

  it("thresholds are the call's, else the user's, else the machine's", () => {
    write(machine, 'maxPower: 10\nmaxTemperature: 10\nmaxUtilization: 10\nallowProcesses: true');
    write(user, 'maxPower: 20\nmaxTemperature: 20');
    const merged = mergeCriteria({ maxPower: 30, maxTemperature: undefined }, load());
    expect(merged).toMatchObject({
      maxPower: 30,
      maxTemperature: 20,
      maxUtilization: 10,
      allowProcesses: true,
    });
    expect(mergeCriteria(undefined, load()).maxPower).toBe(20);
    expect(mergeCriteria({ allowProcesses: false }, load()).allowProcesses).toBe(false);
  });

  it("mistakes of the call are the call's", () => {
    expect(
      refusal(() => mergeCriteria({ maxPower: 'x' }, load(), { names: { maxPower: '--max-power' } })),
    ).toMatch(/^--max-power: /);
    expect(refusal(() => mergeCriteria(7, load()))).toContain('options must be an object');
    expect(mergeCriteria({ count: 2 }, load(), { alsoKnown: ['count'] }).force).toBe(false);
  });
});

test.skipIf(noMounts !== null)("configuration: a variable doesn't lift the machine's bans", async () => {
  const simulated = new Machine(4);
  try {
    write(join(base, 'etc.yaml'), 'exclude: [0, T400]\nminFreeMemory: 1TiB\n');
    mkdirSync(join(base, 'etc'));
    const setup = `cp -a /etc/. ${base}/etc && mkdir -p ${base}/etc/gpu-owner &&
      cp ${base}/etc.yaml ${base}/etc/gpu-owner/config.yaml && mount --bind ${base}/etc /etc && exec "$@"`;
    const configuration = async (GPU_OWNER_SIMULATE?: string) => {
      const doctor = ['sh', process.execPath, command, 'doctor', '--json'];
      const env = { GPU_OWNER_SIMULATE, GPU_OWNER_LOCK_DIR: join(simulated.directory, 'locks') };
      const { stdout } = await simulated.run(['unshare', '-m', 'sh', '-c', setup, ...doctor], { env });
      const findings = JSON.parse(stdout) as { id: string; text: string }[];
      return findings.find(({ id }) => id === 'configuration')?.text;
    };
    expect(await configuration()).toBe('/etc/gpu-owner/config.yaml is valid.');
    // Simulated GPUs aren't the machine's.
    expect(await configuration('4')).toContain('No configuration file');
  } finally {
    await simulated.close();
  }
});
