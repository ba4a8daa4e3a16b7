// Jobs whose GPUs do nothing are warned, and ended. native/tests/keeper/idle.cc has what counts as doing nothing.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { finished, Machine, output, until } from '../support/machine.ts';
import { childrenOf, sendSignal, stat } from '../support/processes.ts';
import { withTimeouts } from '../support/time.ts';

const env = withTimeouts({ usage: 200, grace: 300 });

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

const start = (...args: string[]) => machine.startCommand(args, { env });

test('a command whose GPU does nothing is warned, and ended with exit code 124', async () => {
  const child = start('run', '--idle', '3s', '--', 'sleep', '60');
  const end = finished(child);
  let reason = '';
  await until(async () => {
    const [gpu] = await machine.status();
    reason = gpu.reason;
    return gpu.lease?.idleEnds !== undefined;
  });
  expect(reason).toMatch(/^leased by \S+ since \S+, ended at \S+ unless used/);
  const { code, stderr } = await end;
  expect(code).toBe(124);
  expect(stderr).toMatch(
    /GPU 0 has done nothing for 1 s \(--idle 3s\): sleep and all its processes get SIGTERM in 1 s, unless it is used by then\n/,
  );
  expect(stderr).toMatch(/GPU 0 has done nothing for 3 s .*SIGTERM, and after 300 ms SIGKILL\n/);
  const { rows } = JSON.parse((await machine.runCommand(['report', '--json'])).stdout);
  expect(rows[0].idleShare).toBe(1);
  expect(rows[0].energyKWh).toBeGreaterThan(0);
});

test('a command that uses its GPU goes on, and a pause that ends in time is no end', async () => {
  machine.set('gpu=0', 'utilization=30');
  const child = start('run', '--idle', '3s', '--', ...machine.untilFile('done'));
  const end = finished(child);
  const ledger = () => readLedger();
  await until(() => Number(/"metered":(\d+)/.exec(ledger())?.[1] ?? 0) > 600);
  expect(ledger()).toMatch(/"idle":0,/);
  const warning = output(child, /done nothing/);
  machine.set('gpu=0', 'utilization=0');
  await warning;
  const use = output(child, /used again/);
  machine.set('gpu=0', 'utilization=30');
  await use;
  expect((await machine.status())[0].lease.idleEnds).toBeUndefined();
  machine.touch('done');
  expect((await end).code).toBe(0);
});

test('a driver that hangs keeps no lease once the last process has ended', async () => {
  machine.set('gpu=0', 'hang=energy');
  const left = 'setsid sleep 60 >/dev/null 2>&1 & echo $!';
  const { stdout } = await machine.runCommand(['run', '--', 'sh', '-c', left], { env });
  const survivor = Number(stdout);
  const keeper = stat(survivor)?.parent as number;
  await until(() => childrenOf(keeper).length === 2); // the other one reads the GPU
  sendSignal(survivor, 'SIGKILL');
  await until(async () => (await machine.runCommand(['jobs', '--json'])).stdout === '[]\n');
});

test("the machine's configuration warns by notifyCommand, and ends nothing if it says never", async () => {
  const told = join(machine.directory, 'told');
  machine.configure(
    [
      'idle: { after: 1s, notify: true, end: never }',
      `notifyCommand: [sh, -c, 'echo "$GPU_OWNER_EVENT $GPU_OWNER_TEXT" >> ${told}']`,
    ].join('\n'),
  );
  const { stdout } = await machine.runCommand(['submit', '--', ...machine.untilFile('done')], { env });
  await until(() => existsSync(told) && readFileSync(told, 'utf8').includes('\n'));
  expect(readFileSync(told, 'utf8')).toMatch(/^idle job 1 holds GPUs that do nothing, on \S+, GPU 0: sh -c /);
  expect((await machine.status())[0].lease.idleEnds).toBeUndefined();
  machine.touch('done');
  expect((await machine.runCommand(['wait', stdout.trim()])).code).toBe(0);
  expect((await machine.runCommand(['logs', '1'])).stdout).toMatch(
    /GPU 0 has done nothing for 1 s \(idle in the machine's configuration\)\. End sh if/,
  );
});

test('users of idle.except are left alone, and what comes first of both limits counts', async () => {
  machine.configure('idle: { after: 1s, end: 1s-later, except: { users: [root], minUtilization: 5% } }\n');
  const child = start('run', '--', ...machine.untilFile('done'));
  const end = finished(child);
  await until(() => Number(/"idle":(\d+)/.exec(readLedger())?.[1] ?? 0) > 2_500);
  machine.touch('done');
  expect(await end).toMatchObject({ code: 0, stderr: '' });
  machine.configure('idle: { after: 1s, end: 1s-later }\n');
  const { code, stderr } = await machine.runCommand(['run', '--idle', '1h', '--', 'sleep', '60'], { env });
  expect(code).toBe(124);
  expect(stderr).toMatch(/done nothing for 2 s \(idle in the machine's configuration\)/);
});

test.each([
  [['--idle', '1m'], '', 64, /--idle: '1m' is less than 2 min; use 30m or 1h/],
  [[], 'idle: { end: never }\n', 78, /idle: it needs after/],
  [
    [],
    'idle: { after: 1h, end: 30m }\n',
    78,
    /idle.end: '30m' is not a time after the warning; use '30m-later'/,
  ],
  [[], 'idle: { after: 1h, until: 30m }\n', 78, /idle: there is no key 'until'/],
])('%s with the configuration %j is refused', async (options, configuration, exitCode, message) => {
  if (configuration !== '') machine.configure(configuration);
  const { code, stderr } = await machine.runCommand(['run', ...options, 'true']);
  expect(code).toBe(exitCode);
  expect(stderr).toMatch(message);
});

function readLedger(): string {
  const month = new Date().toISOString().slice(0, 7);
  const path = join(machine.lockDirectory, 'usage', `${process.geteuid?.()}-${month}.jsonl`);
  return existsSync(path) ? readFileSync(path, 'utf8') : '';
}
