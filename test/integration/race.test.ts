import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { finished, Machine, NOBODY, pause, whyNotNobody } from '../machine.ts';

const CLAIMANTS = 64;
const GPUS = 8;
const SECONDS = process.env.GPU_OWNER_SOAK ? 300 : 14;

const claimant = join(import.meta.dirname, 'fixtures/claimant.mjs');
const twoUsers = whyNotNobody() === null;

let machine: Machine;
afterEach(() => machine.close());

test(`64 processes${twoUsers ? ' of two users' : ''} claim at once, killed and stopped at random: no GPU is held twice, none is lost`, {
  timeout: (SECONDS + 60) * 1000,
}, async () => {
  machine = new Machine(GPUS);
  const witness = randomBytes(8).toString('hex');
  const start = (i: number) =>
    machine.start([process.execPath, claimant, witness, String(SECONDS), String(1 + (i % 4))], {
      umask: i % 3 === 0 ? '077' : '022',
      ...(twoUsers && i % 2 === 1 ? { uid: NOBODY } : {}),
    });
  const running = Array.from({ length: CLAIMANTS }, (_, i) => start(i));
  const outcomes = running.map((child) => finished(child));

  // A quarter is killed while it claims and holds, another quarter stopped for a while.
  const trouble = (async () => {
    await pause(SECONDS * 400);
    for (let i = 0; i < CLAIMANTS / 4; i++) {
      running[i]?.kill('SIGKILL');
      await pause(SECONDS * 8);
    }
    for (let i = CLAIMANTS / 4; i < CLAIMANTS / 2; i++) {
      running[i]?.kill('SIGSTOP');
      await pause(SECONDS * 8);
      setTimeout(() => running[i]?.kill('SIGCONT'), 3_000);
    }
  })();

  const results = await Promise.all(outcomes);
  await trouble;
  const texts = results.map(({ stdout }) => stdout).join('');
  expect(texts.match(/violation: .*/g)).toBeNull();
  const survivors = results.filter(({ signal }) => signal !== 'SIGKILL');
  expect(survivors.filter(({ code }) => code !== 0)).toEqual([]);
  // One or another may have ended just before it was killed.
  expect(survivors.length).toBeGreaterThanOrEqual((CLAIMANTS * 3) / 4);
  expect(survivors.length).toBeLessThan(CLAIMANTS);
  const claims = [...texts.matchAll(/claims (\d+)/g)].reduce((sum, [, n]) => sum + Number(n), 0);
  console.log(`${claims} claims in ${SECONDS} s`);
  // That it was put to the test at all: how many a busy machine manages isn't promised.
  expect(claims).toBeGreaterThan(SECONDS);
  await expect.poll(() => machine.states()).toEqual(Array(GPUS).fill('free'));
});

test('the witness would see it: claimants with different lock directories do hold a GPU twice', async () => {
  machine = new Machine(1);
  const witness = randomBytes(8).toString('hex');
  const running = ['one', 'other'].map((name) =>
    machine.start([process.execPath, claimant, witness, '8', '1'], {
      // Without marks for other tools, which would keep each from the other's GPU.
      env: { GPU_OWNER_LOCK_DIR: join(machine.directory, name), GPU_OWNER_CONVENTIONS: 'none' },
    }),
  );
  const results = await Promise.all(running.map((child) => finished(child)));
  expect(results.map(({ stdout }) => stdout).join('')).toMatch(/violation: GPU 0/);
});
