import type { ChildProcess } from 'node:child_process';
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { TRACE_POINTS } from '../../lib/claims/locks/effects.ts';
import { finished, Machine, NOBODY, processState, python, until, whyNotNobody } from '../support/machine.ts';

const CLAIM_ALL = 'const owner = new GPUOwner(2); console.log(owner.devices.length)';
const anotherUser = whyNotNobody() === null ? { uid: NOBODY } : {};

const SOAK = process.env.GPU_OWNER_SOAK !== undefined;

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

async function stopAt(step: string, words: string[]): Promise<ChildProcess> {
  const child = machine.start(words, { env: { GPU_OWNER_STOP_AT: step }, umask: '077' });
  await until(() => processState(child.pid as number) === 'T');
  return child;
}

async function expectNothingLeft(): Promise<void> {
  await until(() => machine.processes(0).length + machine.processes(1).length === 0);
  // Another user can claim at once, whatever the dead one's umask was, and whichever user made the directory.
  const look =
    'console.log(gpuOwner.getGPUsSync().map(({ state, lease, reason }) => [state, lease, reason]).join());';
  const next = await machine.runScript(`${look} ${CLAIM_ALL}`, anotherUser);
  expect(next).toMatchObject({ code: 0, stdout: 'free,,,free,,\n2\n' });
  // The proof of the job proves nothing any more, and goes with the next job of its user.
  expect((await machine.runCommand(['run', '--', 'true'])).code).toBe(0);
  expect(readdirSync(machine.lockDirectory).filter((name) => name.startsWith('job-'))).toEqual([]);
  expect(statSync(machine.lockDirectory).mode & 0o7777).toBe(0o1777);
  for (const name of readdirSync(machine.lockDirectory)) {
    const mode = name === 'usage' ? 0o1777 : name.startsWith('turn-') ? 0o644 : 0o666;
    expect([name, statSync(join(machine.lockDirectory, name)).mode & 0o7777]).toEqual([name, mode]);
  }
}

describe.each(TRACE_POINTS.map((step, i) => [step, i] as const).filter(([, i]) => SOAK || i % 2 === 1))(
  'a claimant killed -9 at step "%s"',
  (step, i) => {
    // The library and `run` take the same steps.
    const places = SOAK ? ['the library', 'run'] : [i % 4 === 1 ? 'the library' : 'run'];
    test.each(places)('leaves nothing of %s', async (place) => {
      const library = ['--input-type=module', '-e', machine.script(CLAIM_ALL)];
      const run = ['dist/gpu-owner.cjs', 'run', '-n', '2', '--', python, '-c', 'input()'];
      const child = await stopAt(step, [process.execPath, ...(place === 'run' ? run : library)]);
      child.kill('SIGKILL');
      await finished(child);
      await expectNothingLeft();
    });
  },
);

describe('a claimant stopped while it decides', () => {
  test('does not take what others took meanwhile', async () => {
    const stopped = await stopAt('chosen', [
      process.execPath,
      '--input-type=module',
      '-e',
      machine.script(CLAIM_ALL),
    ]);
    const other = machine.start([
      process.execPath,
      '--input-type=module',
      '-e',
      machine.script(`const owner = new GPUOwner(2); console.log('claimed'); setTimeout(() => {}, 60_000)`),
    ]);
    await new Promise<void>((resolve) => other.stdout?.once('data', () => resolve()));
    stopped.kill('SIGCONT');
    const { code, stderr } = await finished(stopped);
    expect(code).toBe(1);
    expect(stderr).toContain('ERR_GPU_UNAVAILABLE');
    expect(stderr).toContain(`pid ${other.pid}`);
  });
});
