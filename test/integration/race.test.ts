import type { ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { finished, Machine, NOBODY, output, pause, whyNotNobody } from '../support/machine.ts';

const SOAK = process.env.GPU_OWNER_SOAK !== undefined;
const CLAIMANTS = SOAK ? 64 : 16;
const GPUS = 8;
const SECONDS = SOAK ? 300 : 2;
/** Marks for other tools would keep a claim from a GPU whose lock failed, and hide that. */
const UNMARKED = { GPU_OWNER_CONVENTIONS: 'none' };

const claimant = join(import.meta.dirname, 'fixtures/claimant.mjs');
const twoUsers = whyNotNobody() === null;

let machine: Machine;
afterEach(() => machine.close());

test(`${CLAIMANTS} processes${twoUsers ? ' of two users' : ''} claim at once, killed and stopped at random: no GPU is held twice, none is lost`, {
  timeout: (SECONDS + 60) * 1000,
}, async () => {
  machine = new Machine(GPUS);
  const witness = randomBytes(8).toString('hex');
  const start = (i: number) =>
    machine.start([process.execPath, claimant, witness, String(SECONDS), String(1 + (i % 4))], {
      umask: i % 3 === 0 ? '077' : '022',
      env: i % 4 === 0 ? {} : UNMARKED,
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

test.skipIf(!SOAK)(
  `half a million claims${twoUsers ? ' of two users' : ''}, with kills and stops all the time: no GPU is held twice, none is lost`,
  { timeout: 3_600_000 },
  async () => {
    machine = new Machine(GPUS);
    const witness = randomBytes(8).toString('hex');
    const told = { claims: 0, kills: 0, stops: 0 };
    const violations: string[] = [];
    const errors: string[] = [];
    let isOver = false;
    const runner = async (i: number) => {
      while (!isOver) {
        const child = machine.start(
          [process.execPath, claimant, witness, '3600', String(1 + (i % 2)), '0.1'],
          {
            umask: i % 3 === 0 ? '077' : '022',
            ...(twoUsers && i % 2 === 1 ? { uid: NOBODY } : {}),
          },
        );
        children[i] = child;
        child.stdout?.setEncoding('utf8').on('data', (text: string) => {
          told.claims += 100 * (text.match(/^\+100$/gm)?.length ?? 0);
          violations.push(...(text.match(/violation: .*/g) ?? []));
        });
        const { signal, stderr } = await finished(child);
        if (signal !== 'SIGKILL') errors.push(stderr);
      }
    };
    const children: ChildProcess[] = [];
    const runners = Array.from({ length: 8 }, (_, i) => runner(i));
    const report = setInterval(() => console.log(JSON.stringify(told)), 60_000);
    while (told.claims < 500_000 && errors.length === 0) {
      await pause(2_000);
      const one = children[Math.floor(Math.random() * children.length)];
      if (Math.random() < 0.5) {
        if (one?.kill('SIGKILL')) told.kills++;
      } else {
        if (one?.kill('SIGSTOP')) told.stops++;
        setTimeout(() => one?.kill('SIGCONT'), 200 + Math.random() * 1_000);
      }
    }
    isOver = true;
    for (const child of children) child.kill('SIGKILL');
    await Promise.all(runners);
    clearInterval(report);
    console.log(JSON.stringify(told));
    expect(violations).toEqual([]);
    expect(errors).toEqual([]);
    await expect.poll(() => machine.states()).toEqual(Array(GPUS).fill('free'));
  },
);

test('the witness would see it: claimants with different lock directories do hold a GPU twice', async () => {
  machine = new Machine(1);
  const witness = randomBytes(8).toString('hex');
  const running = ['one', 'other'].map((name) =>
    machine.start([process.execPath, claimant, witness, '60', '1'], {
      env: { GPU_OWNER_LOCK_DIR: join(machine.directory, name), ...UNMARKED },
    }),
  );
  await Promise.any(running.map((child) => output(child, /violation: GPU 0/)));
});
