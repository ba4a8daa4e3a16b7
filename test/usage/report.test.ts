// `gpu-owner report` as its users see it. ledger.test.ts has the sums.
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { command, finished, Machine, NOBODY, python, root, until, whyNotNobody } from '../support/machine.ts';
import { withTimeouts } from '../support/time.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine('a100x4-mig');
});
afterEach(() => machine.close());

test('--csv has a header, and quotes names of programs', async () => {
  const program = join(machine.directory, 'a "b", c');
  symlinkSync('/bin/true', program);
  await machine.runCommand(['run', '--', program, 'secret']);
  const { stdout } = await machine.runCommand(['report', '--by', 'job', '--csv']);
  expect(stdout).toMatch(
    /^job,leases,gpu_hours,share,waited_seconds_p50,waited_seconds_p90,idle_share,energy_kwh\n"\w+:a ""b"", c",1,\d+\.\d\d,\d\.\d{4},/,
  );
});

test('a time that begins before 1970 begins in it', async () => {
  const { stdout } = await machine.runCommand(['report', '--since', '100000d', '--json']);
  expect(JSON.parse(stdout).since).toBe('1970-01-02T00:00:00.000Z');
  expect((await machine.runCommand(['report', '--since', '100000d'])).stdout).toMatch(/^Since 1970-01-0\d /);
});

test('--month, and --since with --until, count what was used in that time, and --user only one user', async () => {
  await machine.runCommand(['run', 'true']);
  const ledger = join(machine.lockDirectory, 'usage');
  const uid = process.geteuid?.() ?? 0;
  const lease = (since: string, hours: number) => {
    const gpus = [{ index: 0, uuid: 'x' }];
    const beginning = { since: Date.parse(since), waited: 0, gpus, program: 'python' };
    return `${JSON.stringify({ ...beginning, held: hours * 3_600_000, ended: true }).padEnd(300)}\n`;
  };
  writeFileSync(
    join(ledger, `${uid}-2025-10.jsonl`),
    lease('2025-09-30T23:00', 3) +
      lease('2025-10-15T12:00', 1.25) +
      lease('2025-10-31T23:30', 1) +
      lease('2025-12-24T12:00', 0),
  );
  const hours = async (...args: string[]) => {
    const { code, stdout, stderr } = await machine.runCommand(['report', '--csv', ...args]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return stdout.split('\n')[1]?.split(',').slice(1, 3).join(' ');
  };
  expect(await hours('--month', '2025-10')).toBe('3 3.75');
  expect(await hours('--since', '2025-10-01', '--until', '2025-11-01')).toBe('3 3.75');
  expect(await hours('--since', '2025-10-15 12:30', '--until', '2025-10-15 13:00')).toBe('1 0.50');
  expect(await hours('--month', '2025-11')).toBe('1 0.50');
  // Nothing was held then.
  expect(await hours('--month', '2025-12')).toBe('');
  expect(await hours('--month', '2025-10', '--user', String(uid))).toBe('3 3.75');
  expect(await hours('--month', '2025-10', '--user', String(NOBODY))).toBe('');
  const { stdout } = await machine.runCommand(['report', '--month', '2025-10']);
  expect(stdout).toMatch(/^Since .* until .*, 4 GPUs:\n/);
  expect(stdout).toMatch(/ 3\.75 .*\n\nThe longest leases:\n {2}2\.00 GPU hours/);
});

test('times and users that make no sense are refused', async () => {
  const mistakes = [
    [['--month', '2025-13'], "--month: '2025-13' is not a month; use one such as '2026-10'"],
    [['--month', '0000-01'], "--month: '0000-01' is not a month"],
    [['--month', '9999-01'], '--month: 9999-01 has not begun'],
    [['--month', '2025-10', '--since', '1d'], '--month contradicts --since and --until'],
    [['--since', '2025-02-30'], "--since: '2025-02-30' is not a time; there is no such day"],
    [['--since', '9999-01-01'], '--since: that is a time to come'],
    [['--until', '2025-10-01'], 'use a time before --until'],
    [['--user', 'no such user'], '--user: there is no user no such user here'],
  ] as const;
  const results = await machine.runCommands(mistakes.map(([args]) => ['report', ...args]));
  for (const [at, [, why]] of mistakes.entries())
    expect(results[at]).toMatchObject({ code: 64, stderr: expect.stringContaining(why) });
});

test.skipIf(whyNotNobody() !== null)(
  "a user sees the sums of others, and names of their jobs only with 'usageCommands: everybody'",
  async () => {
    await machine.runCommand(['run', 'true']);
    const keys = async () => {
      const { stdout } = await machine.runCommand(['report', '--by', 'job', '--json'], { uid: NOBODY });
      const { rows, longest } = JSON.parse(stdout);
      return [rows[0].key, longest[0].job];
    };
    expect(await keys()).toEqual(['root', 'root']);
    machine.configure('usageCommands: everybody\n');
    expect(await keys()).toEqual(['root:true', 'root:true']);
  },
);

test('usageKept of the configuration says when old files are removed', async () => {
  const ledger = join(machine.lockDirectory, 'usage');
  const uid = process.geteuid?.();
  const old = join(
    ledger,
    `${uid}-${new Date(Date.now() - 100 * 86_400_000).toISOString().slice(0, 7)}.jsonl`,
  );
  const begin = async () => {
    rmSync(ledger, { recursive: true, force: true });
    mkdirSync(ledger, { recursive: true });
    writeFileSync(old, '');
    await machine.runCommand(['run', 'true']);
  };
  await begin();
  expect(existsSync(old)).toBe(true);
  machine.configure('usageKept: 30d\n');
  await begin();
  expect(existsSync(old)).toBe(false);
});

test.skipIf(existsSync('/var/lib/gpu-owner/usage'))(
  'without a ledger, report says how to have one',
  async () => {
    const { code, stderr } = await machine.runCommand(['report'], {
      env: { GPU_OWNER_SIMULATE: undefined, GPU_OWNER_LOCK_DIR: '/dev/shm' },
    });
    expect(code).toBe(73);
    expect(stderr).toContain('As root: install -d -m 1777 /var/lib/gpu-owner/usage');
  },
);

test.each([
  ['of MIG instances', ['--devices', '0:3']],
  ['of a part of a GPU', ['--devices', '2', '--memory', '10GiB']],
])('run --idle says that the use %s is unknown', async (which, options) => {
  const { code, stderr } = await machine.runCommand(['run', '--idle', '1h', ...options, '--', 'true']);
  expect({ code, stderr }).toEqual({
    code: 0,
    stderr: `gpu-owner: warning: --idle doesn't end the command: the use of its GPUs is unknown ${which}.\n`,
  });
});

test('below a link that others can replace there is no ledger, and report says what to do', async () => {
  const open = join(machine.directory, 'open');
  mkdirSync(open);
  chmodSync(open, 0o777);
  await machine.runCommand(['run', 'true']);
  symlinkSync(machine.lockDirectory, join(open, 'link'));
  const { code, stderr } = await machine.runCommand(['report'], {
    env: { GPU_OWNER_LOCK_DIR: join(open, 'link') },
  });
  const path = join(open, 'link/usage');
  expect({ code, stderr }).toEqual({
    code: 73,
    stderr: `gpu-owner: the ledger of usage can't be read: ${path} is below a symbolic link that is another user's, or that others can replace. Name the directory that \`readlink -f ${path}\` prints.
`,
  });
});

/** The ends of the ledger's lines, by the GPU. */
function linesByGPU(): Record<string, unknown>[] {
  const ledger = join(machine.lockDirectory, 'usage');
  const names = existsSync(ledger) ? readdirSync(ledger) : [];
  const text = names.map((name) => readFileSync(join(ledger, name), 'utf8'));
  const lines = text
    .join('')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line));
  return lines.sort((a, b) => a.gpus[0].index - b.gpus[0].index);
}

test('the energy of a lease is what the counter says, whatever holds the GPU', async () => {
  await machine.close();
  machine = new Machine(8);
  machine.set('gpu=all', 'power=0', 'energy=5000');
  machine.set('gpu=5', 'unsupported=energy');
  const done = join(machine.directory, 'done');
  const untilDone = (how: string, end = '') =>
    `${how}
    const { existsSync } = await import('node:fs');
    while (!existsSync(${JSON.stringify(done)})) await new Promise((resolve) => setTimeout(resolve, 20));
    ${end}`;
  const script = (how: string, end?: string) => [
    process.execPath,
    '--input-type=module',
    '-e',
    machine.script(untilDone(how, end)),
  ];
  const env = {
    ...withTimeouts({ usage: 50 }),
    PYTHONPATH: join(root, 'python'),
    GPU_OWNER_COMMAND: `${process.execPath} ${command}`,
  };
  const claim = (gpu: number, ...more: string[]) =>
    `import gpu_owner, os, time\nwith gpu_owner.claim(devices=[${gpu}]):\n  while not os.path.exists(${JSON.stringify(done)}): time.sleep(.02)\n${more.join('')}`;
  const sweep = [
    'exp',
    'run',
    '--gpus',
    '1',
    '--devices',
    '2',
    '--grid',
    'a=1,2',
    '--',
    ...machine.untilFile('done'),
  ];
  const hold = machine.startCommand(['hold', '--devices', '3'], { env });
  const children = [
    machine.start(script('const owner = new GPUOwner({ devices: [0] });', 'owner.release();'), { env }),
    machine.start(script('await GPUOwner.acquire({ devices: [1] });'), { env }),
    machine.startCommand(sweep, { cwd: machine.directory, env }),
    hold,
    machine.start([python, '-c', claim(4)], { env }),
    ...[5, 6, 7].map((gpu) => machine.start(script(`new GPUOwner({ devices: [${gpu}] });`), { env })),
  ];
  const ends = Promise.all(children.map((child) => finished(child)));
  const meanwhile = () => [3, 4].map((gpu) => linesByGPU()[gpu]?.energy);
  await until(() => linesByGPU().length === 8 && meanwhile().every((energy) => energy === 0));
  await until(() => linesByGPU().every(({ held }) => Number(held) >= 1_000)); // shorter ones aren't metered
  const joules = [36, 1, 360, 72, 2_500, 100, 5_000, 0];
  for (const [gpu, used] of joules.entries()) machine.set(`gpu=${gpu}`, `energy=${5_000 + used}`);
  machine.set('gpu=6', 'energy=4999'); // the driver was loaded anew
  children[7]?.kill('SIGKILL');
  await until(() => meanwhile().join() === '72000,2500000');
  machine.touch('done');
  hold.stdin?.end();
  for (const { code, stderr } of await ends) expect([0, null], stderr).toContain(code);
  const lines = linesByGPU();
  expect(lines.map(({ energy }) => energy)).toEqual([
    ...joules.slice(0, 5).map((used) => 1_000 * used),
    undefined,
    undefined,
    undefined,
  ]);
  expect(lines.slice(2, 5).map(({ program }) => program)).toEqual([
    'gpu-owner exp run',
    'gpu-owner hold',
    expect.stringMatching(/^python/),
  ]);
  const { stdout } = await machine.runCommand(['report', '--by', 'gpu', '--json']);
  const told = new Map(JSON.parse(stdout).rows.map((row: { key: string }) => [row.key, row]));
  for (const [gpu, used] of joules.entries()) {
    const { held = 0, metered = 0 } = lines[gpu] as { held: number; metered?: number };
    // Readings of a part of the lease stand for all of it.
    const kWh = gpu < 5 ? (used / 3.6e6) * (held / metered) : null;
    expect(told.get(String(gpu))).toMatchObject({ energyKWh: kWh === null ? null : expect.closeTo(kWh, 9) });
  }
  expect(told.get('0')).toMatchObject({ energyKWh: 0.00001, idleShare: null });
});

test('claims of a process end as quickly as one where the driver hangs', async () => {
  await machine.close();
  machine = new Machine(8);
  const hang = JSON.stringify([command, 'simulate', 'set', 'gpu=all', 'hang=energy']);
  const script = machine.script(`
    const owners = Array.from({ length: 8 }, (_, gpu) => new GPUOwner({ devices: [gpu], placeholder: 'none' }));
    await new Promise((resolve) => setTimeout(resolve, 1_000)); // shorter leases aren't metered
    (await import('node:child_process')).execFileSync(process.execPath, ${hang});
    const start = performance.now();
    for (const owner of owners) owner.release();
    console.log(performance.now() - start);`);
  const { stdout, stderr } = await finished(
    machine.start([process.execPath, '--input-type=module', '-e', script]),
  );
  expect(stdout, stderr).toMatch(/^\d+/);
  expect(Number(stdout)).toBeLessThan(4_000);
  expect(linesByGPU().map(({ ended, energy }) => [ended, energy])).toEqual(Array(8).fill([true, undefined]));
});

test.skipIf(whyNotNobody() !== null)(
  'a link in place of the ledger is refused by report, and named by claims, with what to do',
  async () => {
    await machine.runCommand(['run', 'true']);
    const ledger = join(machine.lockDirectory, 'usage');
    rmSync(ledger, { recursive: true });
    await machine.run(['ln', '-s', machine.directory, ledger], { uid: NOBODY });
    const report = await machine.runCommand(['report']);
    const cause = `${ledger} is a symbolic link of nobody, and no link is followed there`;
    expect(report.code).toBe(73);
    expect(report.stderr).toContain(
      `the ledger of usage can't be read: ${cause}. As root: \`rm ${ledger}\`, `,
    );
    const run = await machine.runCommand(['run', 'true']);
    expect(run.code).toBe(0);
    expect(run.stderr).toContain(`isn't noted in the ledger, and reports will lack it: ${cause}. As root: `);
  },
);
