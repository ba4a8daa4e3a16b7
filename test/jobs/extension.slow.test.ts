// More time for jobs that have a time limit.
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { alice, RUN, startHolder } from '../support/holders.ts';
import { type Machine, whyNotNobody } from '../support/machine.ts';
import { nameOf } from '../support/processes.ts';
import { until } from '../support/time.ts';
import { type Jobs, jobTest } from './background.ts';

let machine: Machine;
let jobs: Jobs;
jobTest((opened) => ({ machine, jobs } = opened));

const HOUR_MS = 3_600_000;
const extend = (...words: string[]) => jobs.run(['jobs', 'extend', ...words]);
const details = (id: number) => jobs.details(id);
const running = (id: number) => jobs.reach(id, 'running');
/** When its limit ends it, after its start, in hours. */
async function hoursOf(id: number): Promise<number | null> {
  const { started, until } = await details(id);
  return until === null ? null : (Date.parse(until) - Date.parse(started)) / HOUR_MS;
}

test('a job that runs gets more time, and all that tells of its end follows', async () => {
  const id = await jobs.submit(['-n2', '--for', '1h', '--name', 'train', '--', ...machine.untilFile('go')]);
  await running(id);
  machine.startCommand([...RUN, '--', 'true']);
  const queue = async () => JSON.parse((await jobs.run(['queue', '--json'])).stdout);
  await until(async () => (await queue())[0]?.latestStart != null);
  expect(await extend('train', '2h')).toMatchObject({ code: 0, stdout: `job train may run 3 h\n` });
  expect(await hoursOf(id)).toBe(3);
  expect((await details(id)).limit).toBe(3 * 3600);
  const [{ lease }] = JSON.parse((await jobs.run(['status', '--json'])).stdout);
  const end = Date.parse((await details(id)).until ?? '');
  expect(Math.abs(Date.parse(lease.until) - end)).toBeLessThan(60_000);
  expect(Math.abs(Date.parse((await queue())[0].latestStart) - end)).toBeLessThan(120_000);
  expect((await extend(String(id), '30m')).code).toBe(0);
  expect(await hoursOf(id)).toBe(3.5);
  machine.touch('go');
  expect(await jobs.wait(id)).toBe(0);
});

test('jobs that wait get a new limit, in Node.js or not, and other requests see it', async () => {
  const holder = await startHolder(machine, ['-n', '2']);
  const ids = [];
  for (const name of ['a', 'b'])
    ids.push(await jobs.submit(['--for', '1h', '--name', name, '--', ...machine.untilFile(name)]));
  const [first = 0, second = 0] = ids;
  await until(async () => nameOf((await details(second)).pid) === 'gpu-owner-wait');
  expect((await extend(String(first), String(second), '1h')).code).toBe(0);
  expect((await details(second)).limit).toBe(2 * 3600);
  await until(() => /"limitMs":7200000/.test(readFileSync(`${machine.lockDirectory}/line.lock`, 'latin1')));
  holder.stdin?.end();
  for (const id of ids) {
    await running(id);
    expect(await hoursOf(id)).toBe(2);
  }
});

test('a job that was preempted keeps its longer limit', async () => {
  const id = await jobs.submit(['-n2', '--preemptible', '--for', '1h', '--', ...machine.untilFile('go', 0)]);
  await running(id);
  expect((await extend(String(id), '1h')).code).toBe(0);
  expect((await machine.runCommand([...RUN, '-n', '2', '--', 'true'])).code).toBe(0);
  await running(id);
  await until(async () => (await hoursOf(id)) === 2);
});

test('what can’t be extended is refused, and a part of an array is extended', async () => {
  const file = machine.untilFile('go');
  await jobs.submit(['--', ...file]);
  await jobs.submit(['--array', '1', '--for', '1h', '--', ...file]);
  await until(async () => (await jobs.list()).some(({ array }) => array?.index === 1));
  for (const [words, code, message] of [
    ['1', 64, /write gpu-owner jobs extend 17 2h/],
    ['1 soon', 64, /jobs extend: 'soon'/],
    ['2_1 0', 64, /jobs extend: how much longer/],
    ['1 1h', 64, /job 1 has no time limit, so it runs until it ends/],
    ['2 1h', 64, /job 2 is an array; extend its parts one by one, such as 2_0/],
    ['2_1 1h', 0, /^$/],
    ['4 1h', 64, /no job 4/],
  ] as const)
    expect(await extend(...words.split(' ')), words).toMatchObject({
      code,
      stderr: expect.stringMatching(message),
    });
});

const noSecondUser = whyNotNobody();
describe.skipIf(noSecondUser !== null)(`others come first: ${noSecondUser ?? 'two users'}`, () => {
  test('a job isn’t extended into a booking of others, nor past a request that it overtook', async () => {
    const booked = ['book', '--devices', '1', '--user', String(alice.uid), '--from', '+2h', '--for', '1h'];
    expect((await machine.runCommand(booked)).code).toBe(0);
    await startHolder(machine, ['--devices', '0', '--for', '30m']);
    machine.startCommand([...RUN, '-n', '2', '--', 'true'], alice);
    await until(async () => JSON.parse((await jobs.run(['queue', '--json'])).stdout)[0]?.latestStart != null);
    const id = await jobs.submit(['--devices', '1', '--for', '20m', '--', ...machine.untilFile('go')]);
    await running(id);
    const overtaken = await extend(String(id), '5m');
    expect(overtaken.stderr).toMatch(/job 1 can't run longer: \S+ waits for GPU 1, and came before it/);
    const intoBooking = await extend(String(id), '2h');
    expect(intoBooking.stderr).toMatch(/job 1 can't run longer: GPU 1 is booked for .* \(booking 1\)/);
    expect([overtaken.code, intoBooking.code]).toEqual([64, 64]);
    expect((await details(id)).limit).toBe(1200);
  });
});
