// Several jobs in one command, and jobs that are suspended.
import { afterEach, beforeEach, expect, test } from 'vitest';
import { finished, Machine, output, until } from '../support/machine.ts';
import { signalAll } from '../support/processes.ts';
import { Jobs } from './background.ts';

let machine: Machine;
let jobs: Jobs;
beforeEach(() => {
  machine = new Machine(1);
  jobs = new Jobs(machine);
});
afterEach(async () => {
  await jobs.end();
  await machine.close();
});

const states = async () => (await jobs.list()).map(({ state }) => state);

test('a list and a range are several jobs, and --all is all of them', async () => {
  expect((await jobs.run(['cancel', '--all'])).stderr).toBe('gpu-owner: none of your jobs waits or runs\n');
  for (let i = 0; i < 8; i++) await jobs.submit(['--', 'sleep', '1000']);
  expect((await jobs.run(['cancel', '2,3'])).code).toBe(0);
  expect((await jobs.run(['cancel', '5-6', '3'])).code).toBe(0);
  expect((await jobs.run(['cancel', '9-12'])).stderr).toMatch(/you have no job 9 /);
  expect((await states()).map((state) => (state === 'cancelled' ? 'c' : '.')).join('')).toBe('.cc.cc..');
  const { stdout } = await jobs.run(['jobs', '1,7-20', '--json']);
  expect(JSON.parse(stdout).map(({ id }: { id: number }) => id)).toEqual([1, 7, 8]);
  expect((await jobs.run(['cancel', '--all'])).code).toBe(0);
  for (const { state, reason } of await jobs.list()) expect([state, reason]).toEqual(['cancelled', null]);
  expect((await jobs.run(['wait', '1-8'])).code).toBe(143);
});

test('a job whose command is suspended is shown so', async () => {
  const child = machine.startCommand(['run', '--', 'sh', '-c', 'echo $$; kill -STOP $$; sleep 0']);
  const ended = finished(child);
  const pid = Number(await output(child, /\d+\n/));
  let lease: { suspended?: true } | null = null;
  let reason = '';
  await until(async () => {
    const [gpu] = await machine.status();
    ({ lease, reason } = gpu);
    return lease?.suspended === true;
  });
  expect(reason).toMatch(/^leased by \S+ since \d\d:\d\d, suspended \(pid /);
  const [job] = await jobs.list();
  expect(job.reason).toMatch(/^suspended: it keeps its GPUs/);
  // As `fg` does: the keeper has suspended itself like its command.
  signalAll([pid, child.pid as number], 'SIGCONT');
  expect((await ended).code).toBe(0);
});
