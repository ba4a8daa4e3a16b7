import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { finished, Machine, output, processState, python, until } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';

const fixture = join(import.meta.dirname, '../jobs/fixtures/job.py');

let machine: Machine;
let directory: string;
beforeEach(() => {
  machine = new Machine(1);
  directory = join(machine.directory, 'job');
  mkdirSync(directory);
});
afterEach(() => machine.close());

const state = async () => (await machine.states())[0];

function pidOf(way: string, role: string): number {
  return Number(readFileSync(join(directory, `${way}-${role}`), 'utf8'));
}

async function announced(way: string, role: string): Promise<number> {
  await until(() => {
    try {
      return pidOf(way, role) > 0;
    } catch {
      return false;
    }
  });
  return pidOf(way, role);
}

/** Waits until a process that was killed has ended. */
function untilGone(pid: number): Promise<void> {
  return until(() => ['Z', null].includes(processState(pid)), `the end of process ${pid}`);
}

/** All that belongs to a run: who holds what is read from the record, which is what people see. */
async function lease() {
  return (await machine.status())[0].lease;
}

function keeperPid(): number {
  const record = readFileSync(
    join(machine.lockDirectory, 'GPU-00000000-0000-4000-8000-000000000000.lease'),
    'utf8',
  );
  return JSON.parse(record).keeper;
}

// Two ways of leaving a process behind; the tests of the keeper have all that the Python fixture knows.
describe.each(['fork', 'stubborn_daemon'])('a job that leaves a process behind by %s', (way) => {
  test('gives the exit code when the command ends, and the GPU when the last of its processes has', async () => {
    const run = machine.startCommand(['run', '--', python, fixture, directory, way, '--exit', '5']);
    const outcome = finished(run, 'exit');
    const child = await announced(way, 'child');
    const { code, stderr } = await outcome;
    expect(code).toBe(5);
    expect(stderr).toMatch(/has ended \(exit code 5\), but .* still run/);
    expect(stderr).toContain(String(child));
    expect(await state()).toBe('leased');
    expect((await lease()).survivors).toBeGreaterThan(0);
    const { code: refused } = await machine.runCommand(['run', '--no-wait', '--', 'true']);
    expect(refused).toBe(75);
    sendSignal(child, 'SIGKILL');
    await until(async () => (await state()) === 'free');
  });
});

describe.each(['front', 'keeper'] as const)('when the %s is killed -9', (victim) => {
  test('the GPU stays leased exactly as long as a process of the job lives', async () => {
    const run = machine.startCommand(['run', '--', python, fixture, directory, 'popen', '--stay']);
    const outcome = finished(run, 'exit');
    const child = await announced('popen', 'child');
    await until(async () => (await lease())?.pid !== run.pid);
    const main = (await lease()).pid;
    const pids = { front: run.pid as number, keeper: keeperPid() };
    sendSignal(pids[victim], 'SIGKILL');
    await untilGone(pids[victim]);
    expect(await state()).toBe('leased');
    sendSignal(main, 'SIGKILL');
    await untilGone(main);
    expect(await state()).toBe('leased'); // the child is left
    sendSignal(child, 'SIGKILL');
    await until(async () => (await state()) === 'free');
    const { code, signal } = await outcome;
    expect({ victim, code, signal }).toEqual(
      victim === 'front' ? { victim, code: null, signal: 'SIGKILL' } : { victim, code: 137, signal: null },
    );
  });
});

test('more GPUs than a record can name are all leased, and everybody can see by whom', async () => {
  await machine.close();
  machine = new Machine(64);
  const long = 'ö'.repeat(600);
  const holding = machine.startCommand(['run', '-n', '64', '--', 'sh', '-c', 'echo here; read x', long]);
  await output(holding, /here/);
  for (const { state, lease } of await machine.status()) {
    expect({ state, command: lease.command.slice(0, 12) }).toEqual({
      state: 'leased',
      command: "sh -c 'echo ",
    });
    expect(lease.pid).toEqual(expect.any(Number));
  }
  holding.stdin?.end('\n');
  expect((await finished(holding)).code).toBe(0);
});
