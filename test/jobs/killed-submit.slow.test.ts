// `submit` that is killed at any moment leaves a job that runs, one that is lost, or nothing.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { finished, type Machine, until } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import { Random } from '../support/random.ts';
import { pause } from '../support/time.ts';
import { type Jobs, jobTest, type ListedJob } from './background.ts';

const ROUNDS = process.env.GPU_OWNER_SOAK === undefined ? 15 : 400;
const SUBMITTERS = 3;

let machine: Machine;
let jobs: Jobs;
jobTest((opened) => {
  ({ machine, jobs } = opened);
});

test('submit that is killed at any moment leaves no lock, no job that waits for ever, and no number twice', {
  timeout: ROUNDS * 500 + 60_000,
}, async () => {
  const seed = Number(process.env.GPU_OWNER_TEST_SEED ?? Date.now() % 1_000_000);
  const dice = new Random(seed);
  const words = (round: string) => [
    '--output',
    join(machine.directory, 'output-%j'),
    '--',
    'echo',
    `ran ${round}`,
  ];
  const began = performance.now();
  expect(await jobs.submit(words('first'))).toBe(1);
  const longest = 1.5 * (performance.now() - began);

  const told: number[] = [];
  const submitted: number[] = [];
  let killed = 0;
  const submitter = async (name: string) => {
    for (let round = 0; round < ROUNDS / SUBMITTERS; round++) {
      const child = machine.startCommand(['submit', ...words(`${name}${round}`)]);
      const ended = finished(child, 'exit');
      await Promise.race([ended, pause(dice.float() * longest)]);
      sendSignal(child.pid, 'SIGKILL');
      const { signal, code, stdout, stderr } = await ended;
      if (signal === 'SIGKILL') killed++;
      else expect({ code, stderr }, `seed ${seed}`).toEqual({ code: 0, stderr: '' });
      if (stdout !== '') told.push(Number(stdout));
      if (code === 0) submitted.push(Number(stdout));
    }
  };
  await Promise.all(Array.from({ length: SUBMITTERS }, (_, i) => submitter(`round ${i}.`)));
  expect(killed, `seed ${seed}`).toBeGreaterThan(0);

  // Their remains hinder no later job.
  const last = await jobs.submit(words('last'));
  expect(await jobs.wait(last)).toBe(0);
  let listed: ListedJob[] = [];
  await until(
    async () => {
      listed = await jobs.list();
      return listed.every(({ state }) => state !== 'waiting' && state !== 'running');
    },
    () => `the end of ${JSON.stringify(listed)}`,
  );
  const about = `seed ${seed}: ${JSON.stringify(listed.map(({ id, state, reason }) => [id, state, reason]))}`;
  console.log(`${killed} killed of ${ROUNDS}: ${about}`);
  const stateOf = new Map(listed.map(({ id, state }) => [id, state]));
  for (const [id, state] of stateOf) expect(['completed', 'lost'], `${id}, ${about}`).toContain(state);
  // The number is printed before the job starts: one whose submit was killed in between is lost, and can be seen.
  for (const id of told) expect(stateOf.has(id), `${id}, ${about}`).toBe(true);
  for (const id of [1, ...submitted, last]) expect(stateOf.get(id), `${id}, ${about}`).toBe('completed');
  expect(new Set(told).size).toBe(told.length);
  // Had two jobs had one number, there would be two lines in its file.
  const outputs = readdirSync(machine.directory)
    .filter((name) => name.startsWith('output-'))
    .map((name) => ({
      id: Number(name.slice('output-'.length)),
      ran: readFileSync(join(machine.directory, name), 'utf8').match(/^ran .*$/gm) ?? [],
    }));
  for (const { id, ran } of outputs)
    expect(ran, `${id}, ${about}`).toHaveLength(stateOf.get(id) === 'completed' ? 1 : 0);
  const ran = outputs.flatMap((each) => each.ran);
  expect(new Set(ran).size).toBe(ran.length);
  expect(Math.max(...outputs.map(({ id }) => id), ...listed.map(({ id }) => id))).toBe(last);

  await until(() => jobs.processes().length === 0);
  expect(JSON.parse((await jobs.run(['queue', '--json'])).stdout)).toEqual([]);
  expect((await jobs.run(['run', '-n2', '--no-wait', 'true'])).code).toBe(0);
});
