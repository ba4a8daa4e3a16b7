// `gpu-owner selftest` finds simulated drivers that differ from what gpu-owner relies on, and always gives everything back.
import { chmodSync, copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { type CheckName, checksThatNeed } from '../../lib/check/checks.ts';
import { binaries } from '../support/binaries.ts';
import { because, compile, noCompiler } from '../support/doctor.ts';
import { command, finished, Machine, output, python, type Starting, until } from '../support/machine.ts';
import { processesWith } from '../support/processes.ts';
import { timeoutMs, withTimeouts } from '../support/time.ts';

/** The only checks to be made. */
const only = (...names: CheckName[]) => `--only=${names.join()}`;

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
  mkdirSync(join(machine.directory, 'bin'));
  // Pythons without PyTorch, which say so sooner than real ones.
  for (const name of ['python3', 'python'])
    writeFileSync(join(machine.directory, 'bin', name), '#!/bin/sh\nexit 3\n', { mode: 0o755 });
  const timeouts = {
    forgetting: timeoutMs('forgetting', 2_500),
    readings: timeoutMs('readings', 1_500),
  };
  vi.stubEnv('GPU_OWNER_TIMEOUTS', withTimeouts(timeouts).GPU_OWNER_TIMEOUTS);
});
afterEach(() => {
  vi.unstubAllEnvs();
  return machine.close();
});

interface Ran {
  code: number | null;
  stdout: string;
  stderr: string;
  /** Names of the checks with this result, in the order of the report. */
  failed: CheckName[];
  skipped: CheckName[];
  /** The detail of a check, and the remedy. */
  said: (name: CheckName) => string;
}

async function selftest(args: string[] = [], starting: Starting = {}, on = machine): Promise<Ran> {
  const env = { PATH: `${join(machine.directory, 'bin')}:${process.env.PATH}`, ...starting.env };
  const { code, stdout, stderr } = await on.runCommand(['selftest', '--json', ...args], { ...starting, env });
  if (stdout === '') throw new Error(`exit code ${code}: ${stderr}`);
  const checks = JSON.parse(stdout).checks as {
    name: CheckName;
    result: string;
    detail: string;
    remedy: string | null;
  }[];
  for (const { result, remedy } of checks) {
    if (result === 'failed') expect(remedy).toMatch(/\S/);
    else expect(remedy).toBeNull();
  }
  const named = (result: string) => checks.filter((check) => check.result === result).map(({ name }) => name);
  const said = (name: CheckName) => {
    const check = checks.find((each) => each.name === name);
    return `${check?.result}: ${check?.detail} -> ${check?.remedy}`;
  };
  return { code, stdout, stderr, failed: named('failed'), skipped: named('skipped'), said };
}

/** A directory of programs that come first in PATH, before what a simulated machine has. */
function programs(): { directory: string; env: Record<string, string> } {
  const directory = join(machine.directory, 'bin');
  const env = {
    PATH: [directory, join(binaries(), 'simulator/bin'), process.env.PATH].join(':'),
    SIMULATOR_TOOL: join(binaries(), 'gpu-owner-simulator'),
  };
  return { directory, env };
}

function withNvidiaSmi(): Record<string, string> {
  const { directory, env } = programs();
  copyFileSync(join(import.meta.dirname, 'fixtures/nvidia_smi.js'), join(directory, 'nvidia-smi'));
  chmodSync(join(directory, 'nvidia-smi'), 0o755);
  return env;
}

/** A Python that has a PyTorch which counts so many GPUs, and multiplies. */
function withPyTorch(count: number, product = 'right'): Record<string, string> {
  const { directory, env } = programs();
  const program = [
    '#!/bin/sh',
    `case "$2" in *randn*) ;; *) echo 2.9.0+cu130; exit ;; esac`,
    `echo ${count}; echo ${product}`,
    `GPU_OWNER_SIMULATE_UTILIZATION=100 exec ${join(binaries(), 'gpu-owner-placeholder')} --seconds 0 --cuda "$SIMULATED_CUDA" --uuid "$CUDA_VISIBLE_DEVICES"`,
  ];
  writeFileSync(join(directory, 'python3'), `${program.join('\n')}\n`, { mode: 0o755 });
  return { ...env, SIMULATED_CUDA: join(binaries(), 'simulator/libcuda.so.1') };
}

describe('the self-test beside other programs', () => {
  test('passes what can be checked with nvidia-smi and PyTorch', async () => {
    const env = { ...withNvidiaSmi(), ...withPyTorch(1) };
    const { code, failed, skipped, said } = await selftest([only('fields', 'snapshot', 'pytorch-computes')], {
      env,
    });
    expect({ code, failed, skipped }).toEqual({ code: 0, failed: [], skipped: [] });
    expect(said('fields')).toMatch(/^passed: 13 fields of 2 GPUs are what nvidia-smi says\./);
    expect(said('snapshot')).toMatch(/nvidia-smi takes [\d.]+ m?s/);
    expect(said('pytorch-computes')).toMatch(/multiplies rightly; a second claim is refused, in /);
  });

  test('imports no module of the working directory, which may be another user’s', async () => {
    const ran = join(machine.directory, 'ran');
    const hostile = `open(${JSON.stringify(ran)}, 'w')\nraise SystemExit(0)\n`;
    for (const name of ['torch', 'os', 'site']) writeFileSync(join(machine.directory, `${name}.py`), hostile);
    for (const name of ['python3', 'python'])
      writeFileSync(join(machine.directory, 'bin', name), `#!/bin/sh\nexec ${python} "$@"\n`, {
        mode: 0o755,
      });
    const { code, said } = await selftest(['-n', '1', only('pytorch-computes')], { cwd: machine.directory });
    expect([code, existsSync(ran)]).toEqual([0, false]);
    expect(said('pytorch-computes')).toMatch(/^(skipped: no Python in PATH has PyTorch|passed)/);
  });

  test('finds a utilization that does not tell that a GPU computes', async () => {
    machine.set('gpu=0', 'utilization=0');
    const which = only('pytorch-computes');
    const { code, failed, said } = await selftest(['-n', '1', which], { env: withPyTorch(1) });
    expect({ code, failed }).toEqual({ code: 1, failed: ['pytorch-computes'] });
    expect(said('pytorch-computes')).toMatch(/GPU 0 stays below 50 %\. -> Do not rely on idle/);
  });

  test.each([
    [withPyTorch, 1, 'wrong', /^failed: PyTorch 2\.9\.0\+cu130 multiplies wrongly/],
    [withPyTorch, 8, 'right', /^failed: PyTorch 2\.9\.0\+cu130 counts 8 GPUs where 1 is claimed\. -> /],
  ] as const)('finds a PyTorch that fails (%#)', async (make, count, product, words) => {
    const { said } = await selftest(['-n', '1', only('pytorch-computes')], { env: make(count, product) });
    expect(said('pytorch-computes')).toMatch(words);
  });

  test('names each field that differs, and leaves out one that this nvidia-smi does not know', async () => {
    const wrong = ['name', 'pci.bus_id', 'memory.total', 'memory.used', 'memory.free', 'power.draw'];
    const more = ['utilization.gpu', 'temperature.gpu', 'compute_mode', 'persistence_mode'];
    const env = { ...withNvidiaSmi(), WRONG: [...wrong, ...more].join(), WITHOUT: 'mig.mode.current' };
    const { code, failed, said } = await selftest(['-n', '1', only('fields')], { env });
    expect({ code, failed }).toEqual({ code: 1, failed: ['fields'] });
    for (const name of [...wrong, ...more]) expect(said('fields')).toContain(`GPU 0: ${name} is `);
    expect(said('fields')).not.toMatch(/index is|uuid is|mig/);
    expect(said('fields')).toMatch(/power\.draw is 300\.00 in nvidia-smi, 60 here/);
  });
});

describe('the self-test of a driver that differs', () => {
  test('finds processes that are not listed; the remedy is below each result', async () => {
    machine.set('gpu=all', 'hidden-processes=on');
    const which = only('cuda-listed', 'placeholder');
    const env = { COLUMNS: '100' };
    const { code, stdout } = await machine.runCommand(['selftest', '-n', '1', which], { env });
    const failed = [...stdout.matchAll(/^failed +(\S+)/gm)].map(([, name]) => name);
    expect({ code, failed }).toEqual({ code: 1, failed: ['cuda-listed', 'placeholder'] });
    expect(stdout).toMatch(/^failed {3}placeholder {11}A claim takes /m);
    expect(stdout).toMatch(/^ {31}-> Tools that only ask the driver treat claimed GPUs as free/m);
    expect(Math.max(...stdout.split('\n').map((line) => line.length))).toBeLessThanOrEqual(100);
    expect(stdout).toMatch(/\n\n0 passed, 2 failed, 0 skipped: 1 GPU, a simulated driver\.\n$/);
  });

  test('finds one that never forgets processes that were killed', async () => {
    const neighbour = machine.startCommand(['hold', '--devices', '1', '--as', 'train-secret-model']);
    await output(neighbour, /visibleDevices/);
    machine.set('teardown=600000');
    const which = ['cuda-listed', 'cuda-killed', 'hand-over'] as const;
    const { code, stdout, failed, said } = await selftest(['-n', '1', only(...which)]);
    expect(stdout).not.toMatch(/secret|(GPU|MIG)-[0-9a-f]{8}/);
    expect(code).toBe(1);
    expect({ failed }).toEqual({ failed: ['cuda-killed', 'hand-over'] });
    expect(said('cuda-killed')).toMatch(
      /stops listing the process not within [\d.]+ s.* -> Claim with `--wait`/,
    );
    expect(said('hand-over')).toMatch(/GPU 0 is busy \(1 processes listed, 4\d\d MiB in use\)/);
  });

  test.runIf(process.env.GPU_OWNER_SOAK)('accepts one that forgets processes a second later', async () => {
    machine.set('teardown=1000');
    const which = only('cuda-listed', 'cuda-killed', 'hand-over');
    const { failed, skipped } = await selftest(['-n', '1', which]);
    expect({ failed, skipped }).toEqual({ failed: [], skipped: [] });
  });

  test('finds a CUDA that ignores CUDA_VISIBLE_DEVICES', async () => {
    machine.set('quirks=all-visible');
    const which = only('cuda-devices', 'nested-claims', 'keeper-killed');
    const { code, failed, said } = await selftest(['-n', '1', which]);
    expect({ code, failed }).toEqual({
      code: 1,
      failed: ['cuda-devices', 'nested-claims', 'keeper-killed'],
    });
    expect(said('cuda-devices')).toMatch(
      /CUDA shows 2 GPUs .* for which 1 was claimed, 1 of them not claimed\. -> /,
    );
  });

  test('names a missing CUDA library once, without the home directory, and skips what needs it', async () => {
    const path = join(machine.directory, 'private', 'libcuda.so.1');
    const env = { HOME: machine.directory, GPU_OWNER_CUDA_LIBRARY: path };
    const which = ['cuda-devices', 'cuda-killed', 'exclusion', 'keeper-killed'] as const;
    const { code, stdout, failed, skipped, said } = await selftest(['-n', '1', only(...which)], { env });
    expect({ code, failed, skipped }).toEqual({
      code: 1,
      failed: ['cuda-devices'],
      skipped: ['cuda-killed', 'keeper-killed'],
    });
    expect(said('cuda-devices')).toMatch(/CUDA does not start: .*~\/private\/libcuda\.so\.1.* -> .*doctor/);
    expect(said('keeper-killed')).toMatch(/^skipped: there is no CUDA \(see cuda-devices\) -> /);
    expect(stdout).not.toContain(machine.directory);
  });

  test('finds a slow driver, and stops when its time is up', async () => {
    machine.set('latency=memory:600000');
    const which = only('snapshot', 'nested-claims', 'mig');
    const { code, failed, skipped, said } = await selftest(['-n', '1', which, '--timeout', '4s']);
    expect(code).toBe(1);
    expect(failed).toEqual(expect.arrayContaining(['snapshot']));
    expect(said('snapshot')).toMatch(/every claim takes at least as long.* -> .*nvidia-smi -pm 1/);
    expect(skipped).toContain('mig');
    expect(said('mig')).toMatch(/no time was left \(--timeout 4 s\)/);
  });

  test('gives up on a check that never ends, and frees the GPU', async () => {
    machine.set('hang=cuda-context');
    const began = performance.now();
    const which = only('cuda-listed', 'exclusion');
    const { code, failed, skipped, said } = await selftest([which, '--timeout', '4s']);
    expect(performance.now() - began).toBeLessThan(60_000);
    expect({ code, failed, skipped }).toEqual({ code: 1, failed: ['cuda-listed'], skipped: ['exclusion'] });
    expect(said('cuda-listed')).toMatch(/^failed: No answer within .* -> .*dmesg/);
    machine.set('hang=off');
    expect(await machine.states()).toEqual(['free', 'free']);
  });

  test.skipIf(noCompiler !== null)(`finds locks that exclude nobody${because(noCompiler)}`, async () => {
    const env = {
      LD_PRELOAD: compile(machine, join(import.meta.dirname, 'fixtures/sick_shim.c')),
      DEAF_LOCKS: '1',
      GPU_OWNER_CONVENTIONS: 'none',
    };
    const { code, failed, said } = await selftest(['-n', '1', only('exclusion', 'shares', 'preemption')], {
      env,
    });
    expect({ code, failed }).toEqual({ code: 1, failed: ['exclusion', 'shares', 'preemption'] });
    expect(said('exclusion')).toMatch(/a second claim gets them as well\. -> Locks do not work/);
  });
});

test('the self-test claims one MIG instance, and CUDA shows exactly that', async () => {
  const divided = new Machine('a100x4-mig');
  const which = only('cuda-devices', 'mig');
  try {
    const { code, failed, said } = await selftest([which], {}, divided);
    expect({ code, failed }).toEqual({ code: 0, failed: [] });
    expect(said('mig')).toMatch(
      /^passed: A command with MIG instance 0:0 sees exactly that, and the driver lists/,
    );
    divided.set('quirks=all-visible');
    // Instances that may not be used are left alone.
    const excluded = await selftest(['-n', '1', '--devices', '2', which], {}, divided);
    expect(excluded).toMatchObject({ failed: ['cuda-devices'], skipped: ['mig'] });
    const wrong = await selftest(['-n', '1', which], {}, divided);
    expect(wrong).toMatchObject({ failed: ['cuda-devices', 'mig'] });
    expect(wrong.said('mig')).toMatch(
      /A command with MIG instance 0:0 sees \d+ devices, and others, too\. -> /,
    );
  } finally {
    await divided.close();
  }
});

const ODD_MACHINES = [
  ['wsl', [], ['cuda-listed', 'placeholder']],
  ['oldest-driver', [], []],
  ['jetson', ['--max-used-memory', 'any', '--allow-processes'], []],
] as const;

test.runIf(process.env.GPU_OWNER_SOAK).each(ODD_MACHINES)(
  'no check of the self-test fails on the machine %s',
  async (name, options, impossible) => {
    const other = new Machine(name);
    const which = only(...checksThatNeed('claim'), 'placeholder', 'hand-over');
    try {
      const { code, failed, skipped } = await selftest(['-n', '1', which, ...options], {}, other);
      expect({ code, failed }).toEqual({ code: 0, failed: [] });
      expect(skipped).toEqual(expect.arrayContaining([...impossible]));
    } finally {
      await other.close();
    }
  },
);

test('inside of a job the self-test claims GPUs of the job', async () => {
  const which = only('nested-claims', 'exclusion');
  const words = ['run', '-n', '1', '--', process.execPath, command, 'selftest', '--json', which];
  const { code, stdout } = await machine.runCommand(words);
  const { gpus, checks } = JSON.parse(stdout) as { gpus: unknown[]; checks: { result: string }[] };
  expect({ code, results: checks.map(({ result }) => result) }).toEqual({
    code: 0,
    results: ['passed', 'passed'],
  });
  expect(gpus.length).toBe(1);
});

describe.each([
  ['claims of its own', ['exclusion', 'hand-over', 'keeper-killed'], 'SIGTERM'],
  ['a CUDA program', ['cuda-listed', 'nested-claims'], 'SIGKILL'],
] as const)('the self-test, ended after %s', (_, names, signal) => {
  test(`by ${signal}: no GPU stays claimed, and no process is left`, async () => {
    const mark = `SELFTEST_MARK_${process.pid}_${signal}`;
    const child = machine.startCommand(['selftest', only(...names)], { env: { [mark]: '1' } });
    const end = finished(child);
    await output(child, new RegExp(`passed +${names[0]}`));
    child.kill(signal);
    const { signal: by, stdout, stderr } = await end;
    expect(stdout).not.toMatch(/failed|an earlier check/);
    expect({ by, stderr }).toEqual({
      by: signal,
      stderr: signal === 'SIGKILL' ? '' : 'gpu-owner: interrupted; all GPUs are released.\n',
    });
    // A placeholder that was killed is listed for a moment more.
    await until(() => processesWith(mark).length === 0);
    expect(await machine.states()).toEqual(['free', 'free']);
    expect(machine.allProcesses()).toEqual([[], []]);
  });
});

test('a self-test that is ended by SIGINT while it waits for a GPU leaves the wait queue', async () => {
  const holder = machine.startCommand(['hold', '-n', '2', '--placeholder', 'none']);
  await output(holder, /visibleDevices/);
  const mark = `SELFTEST_MARK_${process.pid}_waiting`;
  const child = machine.startCommand(['selftest', '--wait'], { env: { [mark]: '1' } });
  const end = finished(child);
  await output(child, /waiting for a GPU/);
  child.kill('SIGINT');
  expect((await end).signal).toBe('SIGINT');
  expect(processesWith(mark)).toEqual([]);
  expect((await machine.runCommand(['queue'])).stdout).toBe('Nobody is waiting.\n');
});

test('each check is seen failing by a test', () => {
  const source = readFileSync(import.meta.filename, 'utf8').replace(/\s+/g, ' ');
  const lists = [
    ...source.matchAll(/\bfailed(?:: |\)\.toEqual\( ?expect\.arrayContaining\( ?)\[([^\]]*)\]/g),
  ];
  const seen = new Set(lists.flatMap(([, list = '']) => list.match(/[a-z-]+/g) ?? []));
  for (const name of checksThatNeed('claim', 'gpu')) expect([...seen]).toContain(name);
});
