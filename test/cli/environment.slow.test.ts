// A command under `gpu-owner run` starts exactly as it would without it.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { launcher, Machine, python, root } from '../support/machine.ts';

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);

const SOON = { timeout: 20_000 };

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

interface Surroundings {
  environment: Record<string, string>;
  command: string[];
  directory: string;
  descriptors: Record<string, unknown>;
  [more: string]: unknown;
}

/** Returns what the command sees after this Python code, without gpu-owner and under it. */
async function compare(setup: string, options: string[] = [], env: Record<string, string> = {}) {
  // Sessions are not compared with those of the test, but both runs must be in the same.
  const probe = [python, fixture('probe.py'), 'ärgument', '', '--', '-n', 'two words'];
  const look = async (words: string[]) => {
    const result = await machine.run(
      [python, fixture('prepared.py'), setup, ...words],
      { env },
      'some input',
    );
    // (A shell's own complaint where it starts in a directory that is gone.)
    const stderr = result.stderr.replace(/^sh: 0: getcwd\(\) failed: .*\n/, '');
    expect({ code: result.code, stderr }).toEqual({ code: 0, stderr: '' });
    return JSON.parse(result.stdout) as Surroundings;
  };
  const [without, under] = [await look(probe), await look([launcher, 'run', ...options, '--', ...probe])];
  // Each run has pipes of its own.
  const numbers = ({ descriptors }: Surroundings) =>
    Object.fromEntries(
      Object.entries(descriptors).map(([name, facts]) => [
        name,
        JSON.stringify(facts)
          .replace(/\d+\]/, '')
          .replace(/(pipe|socket):\[\d+\]/, '$1'),
      ]),
    );
  const {
    CUDA_VISIBLE_DEVICES,
    CUDA_DEVICE_ORDER,
    LD_LIBRARY_PATH,
    PATH,
    PYTHONPATH,
    GPU_OWNER_JOB,
    ...environment
  } = under.environment;
  expect(GPU_OWNER_JOB).toMatch(/^\d+$/);
  // The launcher is a shell, and shells put PWD right.
  if (environment.PWD !== undefined) without.environment.PWD = environment.PWD;
  return {
    without: { ...without, descriptors: numbers(without) },
    under: {
      ...under,
      environment: {
        ...environment,
        ...Object.fromEntries(
          Object.entries(without.environment).filter(
            ([name]) => name === 'LD_LIBRARY_PATH' || name === 'PYTHONPATH',
          ),
        ),
        PATH: without.environment.PATH,
      },
      descriptors: numbers(under),
    },
    variables: { CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, LD_LIBRARY_PATH, PATH, PYTHONPATH },
  };
}

/** What a user may have set, in as few starts as can have all of it. */
const SETUPS: Record<string, string> = {
  'nothing unusual': '',
  'signals, limits, a mask, a directory, descriptors and variables of its own': String.raw`
for n in (1, 2, 3, 10, 13, 15, 20, 21, 22, 28): signal.signal(n, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (1000, 2000))
resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, 16 << 20))
os.umask(0o077)
os.sched_setaffinity(0, {0})
os.nice(3)
for n in (3, 4, 17): os.dup2(1, n, inheritable=True)
os.chdir('/usr/lib')
environment.update({b'EMPTY': b'', b'LINES': b'a\nb\r', b'EQUALS': b'a=b=c', b'BYTES': b'\xff\xfe\x80', b'BASH_FUNC_module%%': b'() { echo hi; }', b'dotted.name': b'1', b'A' * 300: b'long', b'PS4': b'$(echo evil >&2)'})
environment.update({b'ENV': b'/nonexistent', b'BASH_ENV': b'/nonexistent', b'POSIXLY_CORRECT': b'1', b'CDPATH': b'/usr'})
environment.update({b'NODE_OPTIONS': b'--max-old-space-size=512', b'NODE_PATH': b'/usr/lib'})
environment.update({b'LANG': b'tr_TR.UTF-8', b'LC_ALL': b'C', b'TZ': b'Asia/Kathmandu'})
arguments += [b'\xff\xfe', b'\xe4', b'', b'\n']`,
  'a low hard limit of open files, a directory that is gone, and standard input from nowhere': `
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
d = os.environ['SCRATCH'] + '/gone'; os.mkdir(d); os.chdir(d); os.rmdir(d)
os.dup2(os.open('/dev/null', os.O_RDONLY), 0)`,
  'non-blocking standard input, an environment of 1 MB and many arguments': `
os.set_blocking(0, False); import time; time.sleep(0.2)
environment.update({f'BIG_{i}'.encode(): b'x' * 100_000 for i in range(10)})
arguments += [b'x' * 1000] * 900`,
  'no environment but PATH and the simulation': `environment = {k: v for k, v in environment.items() if k == b'PATH' or k.startswith(b'GPU_OWNER')}`,
};

describe.each(Object.keys(SETUPS))('with %s', (name) => {
  test('a command starts under run as without', async () => {
    const { without, under, variables } = await compare(SETUPS[name] as string, [], {
      SCRATCH: machine.directory,
    });
    expect(under).toEqual(without);
    expect(variables).toEqual({
      CUDA_VISIBLE_DEVICES: 'GPU-00000000-0000-4000-8000-000000000000',
      CUDA_DEVICE_ORDER: undefined,
      LD_LIBRARY_PATH: [join(binaries(), 'simulator'), without.environment.LD_LIBRARY_PATH]
        .filter(Boolean)
        .join(':'),
      PATH: `${join(binaries(), 'simulator/bin')}:${without.environment.PATH}`,
      PYTHONPATH: [join(root, 'python/job'), without.environment.PYTHONPATH].filter(Boolean).join(':'),
    });
  });
});

test('--visible-devices index shows numbers, and the order that makes them mean the right GPUs', async () => {
  const { variables } = await compare('', ['-n', '2', '--visible-devices', 'index']);
  expect(variables).toMatchObject({ CUDA_VISIBLE_DEVICES: '0,1', CUDA_DEVICE_ORDER: 'PCI_BUS_ID' });
});

test('the user’s library path stays, behind that of the simulated driver', async () => {
  const { variables } = await compare('', [], { LD_LIBRARY_PATH: '/opt/lib' });
  expect(variables.LD_LIBRARY_PATH).toBe(`${join(binaries(), 'simulator')}:/opt/lib`);
});

describe('gpu-owner itself gets along', () => {
  const run = (
    setup: string,
    words = [launcher, 'run', '--', 'echo', 'it ran'],
    env: Record<string, string> = {},
  ) => machine.run([python, fixture('prepared.py'), setup, ...words], { env });
  const RAN = { code: 0, signal: null, stdout: 'it ran\n', stderr: '' };

  const HOME = (path: string) =>
    `environment.pop(b'XDG_CONFIG_HOME', None); environment[b'HOME'] = b'${path}'`;

  test.each([
    [
      'without HOME, configuration and a usable TMPDIR, in a locale and a time zone that do not exist',
      `for k in (b'HOME', b'XDG_CONFIG_HOME', b'USER', b'LOGNAME'): environment.pop(k, None)
environment.update({b'TMPDIR': b'/nonexistent', b'LC_ALL': b'xx_YY.bad', b'TZ': b'Nowhere/At all'})`,
    ],
    [
      'with a HOME that is a file, 40 open files allowed, and little stack',
      `${HOME('/etc/passwd')}
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 4096))
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))`,
    ],
    [
      'with a HOME that is gone, SIGCHLD ignored and all signals blocked, on one processor',
      `${HOME('/nonexistent')}
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.sched_setaffinity(0, {0})`,
    ],
    [
      'with a relative HOME, and all standard descriptors but output closed',
      `${HOME('home')}\nos.close(0); os.close(2)`,
    ],
  ])('%s', async (_, setup) => {
    expect(await run(setup)).toEqual(RAN);
    await expect.poll(() => machine.states(), SOON).toEqual(['free', 'free']); // a placeholder takes a moment to end
  });

  describe('where the kernel or a container refuses', () => {
    // File systems without O_TMPFILE are among them.
    test.each(['close_range tmpfile renameat2 statx'])('%s', async (refused) => {
      const shim = join(machine.directory, 'shim.so');
      const { error, stderr } = spawnSync(
        'cc',
        ['-shared', '-fPIC', '-o', shim, fixture('refusing_shim.c'), '-ldl'],
        {
          encoding: 'utf8',
        },
      );
      if (error) return console.log('not tested: needs a C compiler (cc)');
      expect(stderr).toBe('');
      const env = { LD_PRELOAD: shim, REFUSE: refused };
      expect(await run('', [launcher, 'run', '-n', '2', '--', 'echo', 'it ran'], env)).toEqual(RAN);
      expect((await run('', [launcher, 'status', '--json'], env)).code).toBe(0);
      expect(await run('', [launcher, 'hold', '-n', '2'], env)).toMatchObject({ code: 0, stderr: '' });
      expect(
        readdirSync(machine.lockDirectory).filter(
          (name) => !/\.(count|lease|lock|look)$|^usage$|^turn-\d+$|^topology-/.test(name),
        ),
      ).toEqual([]);
      for (const name of readdirSync(machine.lockDirectory)) {
        expect(statSync(join(machine.lockDirectory, name)).mode & 0o777).toBe(
          name === 'usage' ? 0o777 : name.startsWith('turn-') ? 0o644 : 0o666,
        );
      }
      expect(statSync(machine.lockDirectory).mode & 0o7777).toBe(0o1777);
      await expect.poll(() => machine.states(), SOON).toEqual(['free', 'free']); // a placeholder takes a moment to end
    });
  });

  test('a user without an account and with an unreadable HOME can use it', async () => {
    if (process.getuid?.() !== 0) return console.log('not tested: needs root, to be another user');
    const home = join(machine.directory, 'home');
    mkdirSync(home, { mode: 0o700 });
    const setup = `environment.pop(b'XDG_CONFIG_HOME', None); environment[b'HOME'] = b'${home}'; os.chdir('/'); os.setgroups([]); os.setresgid(4242, 4242, 4242); os.setresuid(4242, 4242, 4242)`;
    expect(await run(setup)).toEqual(RAN);
    const { stdout } = await run(setup, [launcher, 'run', '--', launcher, 'status', '--json']);
    expect(JSON.parse(stdout)[0]).toMatchObject({ state: 'leased', lease: { user: 'uid 4242', uid: 4242 } });
  });

  test('with too few open files a claim says so, and leaves nothing', async () => {
    // With a hard limit below 200 the command's descriptors have no numbers left.
    const { code, stdout, stderr } = await run('resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))');
    expect({ code, stdout }).toEqual({ code: 70, stdout: '' });
    expect(stderr).toMatch(/^gpu-owner: no file descriptor is left for the keeper: .*ulimit -n/);
    expect(stderr).not.toMatch(/\n {4}at /);
    await expect.poll(() => machine.states(), SOON).toEqual(['free', 'free']); // a placeholder takes a moment to end
  });

  test('standard output that is closed or full is the command’s affair, and an error of status', async () => {
    // A closed descriptor becomes /dev/null: a file that is opened later must not take its number.
    expect(await run('os.close(1)')).toEqual({ ...RAN, stdout: '' });
    expect(await run('for n in (0, 1, 2): os.close(n)')).toEqual({ ...RAN, stdout: '' });
    const full = `os.dup2(os.open('/dev/full', os.O_WRONLY), 1)`;
    const { code, stderr } = await run(full, [launcher, 'status']);
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/^gpu-owner: standard output can't be written: no space left on device\n$/);
    expect(stderr).not.toMatch(/\n {4}at /);
    const hold = await run(full, [launcher, 'hold']);
    expect(hold.code).not.toBe(0);
    await expect.poll(() => machine.states(), SOON).toEqual(['free', 'free']); // a placeholder takes a moment to end
  });

  test('status ends without a word when its reader goes away', async () => {
    const { code, stderr } = await machine.run([
      'sh',
      '-c',
      `${launcher} status | head -c 1 >/dev/null; ${launcher} status | true`,
    ]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  });
});
