// Our claims and programs that lock as other tools do, all at once, killed at random. That no GPU is held twice is told by a
// witness that neither knows.
//
// gpu_lock and PID files are checked first and written later by their originals, so there is a moment in which they themselves
// aren't safe (docs/conventions.md has how long). No other moment is unsafe, as promised: these programs here make their files
// in one step.
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { finished, Machine, NOBODY, pause, python, whyNotNobody } from '../support/machine.ts';
import {
  directoryOf,
  here,
  makeDirectory,
  NAMES,
  original,
  placeOf,
  SAFE_GPU,
  startOriginal,
} from '../support/other-tools.ts';

const GPUS = 4;
const SECONDS = process.env.GPU_OWNER_SOAK ? 240 : 2.5;
const claimant = join(import.meta.dirname, '../integration/fixtures/claimant.mjs');
const twoUsers = whyNotNobody() === null;

let machine: Machine;
afterEach(() => machine.close());

test.each(NAMES)(
  `%s: ours and theirs${twoUsers ? ', of two users,' : ''} claim at once and are killed: no GPU is held twice, none is lost`,
  { timeout: (SECONDS + 60) * 1000 },
  async (name) => {
    machine = new Machine(GPUS);
    const directory = directoryOf(machine, name);
    makeDirectory(placeOf(machine, '/tmp'));
    const witness = randomBytes(8).toString('hex');
    const user = (i: number) => (twoUsers && i % 2 === 1 ? { uid: NOBODY } : {});
    const ours = Array.from({ length: 6 }, (_, i) =>
      machine.start([process.execPath, claimant, witness, String(SECONDS), String(1 + (i % 2))], {
        ...here(machine),
        ...user(i),
        umask: i % 3 === 0 ? '077' : '022',
      }),
    );
    const theirs = Array.from({ length: 6 }, (_, i) =>
      startOriginal(machine, ['loop', name, directory, witness, String(GPUS), String(SECONDS)], {
        ...user(i),
        umask: '0',
      }),
    );
    const outcomes = [...ours, ...theirs].map((child) => finished(child));
    // A third of each is killed while it claims and holds.
    await pause(SECONDS * 400);
    for (let i = 0; i < 2; i++) {
      ours[i]?.kill('SIGKILL');
      await pause(SECONDS * 20);
      theirs[i]?.kill('SIGKILL');
      await pause(SECONDS * 20);
    }
    const results = await Promise.all(outcomes);
    const texts = results.map(({ stdout }) => stdout).join('');
    expect(texts.match(/violation: .*/g)).toBeNull();
    const survivors = results.filter(({ signal }) => signal !== 'SIGKILL');
    expect(survivors.map(({ code, stderr }) => [code, stderr])).toEqual(
      survivors.map(() => [0, expect.any(String)]),
    );
    // One or another may have ended just before it was killed.
    expect(survivors.length).toBeGreaterThanOrEqual(8);
    expect(survivors.length).toBeLessThan(12);
    const claims = (of: typeof results) =>
      of
        .flatMap(({ stdout }) => [...stdout.matchAll(/claims (\d+)/g)])
        .reduce((sum, [, n]) => sum + Number(n), 0);
    console.log(
      `${name}: ${claims(results.slice(0, 6))} of our claims, ${claims(results.slice(6))} of theirs in ${SECONDS} s`,
    );
    // That it was put to the test at all: how many a busy machine manages isn't promised.
    expect(claims(results.slice(0, 6))).toBeGreaterThan(SECONDS / 2);
    expect(claims(results.slice(6))).toBeGreaterThan(SECONDS / 2);
    const free = await machine.runCommand(
      ['run', '--no-wait', '-n', String(GPUS), '--', 'true'],
      here(machine),
    );
    // A file that was being written when its writer was killed counts as held for some seconds.
    const written = NAMES.filter((each) => each !== 'gpu-scheduler'); // whose locks are the kernel's
    if (free.code !== 0) expect(free.stderr).toMatch(new RegExp(`leased by .* \\((${written.join('|')})\\)`));
  },
);

/** Claims for commands, one after the other: these have placeholders, which is all that safe-gpu sees of them. */
async function runAgainAndAgain(witness: string, longest: number): Promise<{ claims: number; said: string }> {
  const end = performance.now() + SECONDS * 1000;
  let claims = 0;
  let said = '';
  while (performance.now() < end) {
    const seconds = String(Math.random() * longest);
    const { code, stdout, stderr } = await machine.runCommand([
      ...['run', '--wait=30s', '--', python, original, 'testify', witness, seconds],
    ]);
    said += stdout;
    if (code !== 0 && code !== 75) throw new Error(stderr);
    if (code === 0) claims++;
  }
  return { claims, said };
}

/** safe-gpu's programs and ours, all at once. @param slow everything is slowed down until it must go wrong */
async function claimAtOnce(slow: boolean): Promise<{ violations: number; own: number; theirs: number }> {
  const witness = randomBytes(8).toString('hex');
  const path = join(makeDirectory(placeOf(machine, '/tmp/safe_gpu')), SAFE_GPU);
  const tools = [join(binaries(), 'gpu-owner-simulator'), join(binaries(), 'simulator/libcuda.so.1')];
  const theirs = Array.from({ length: 3 }, () =>
    finished(
      startOriginal(machine, ['safe-gpu-loop', path, ...tools, witness, String(SECONDS)], {
        env: { WINDOW: slow ? '0.5' : '0.02' },
      }),
    ),
  );
  const ours = await Promise.all([1, 2, 3].map(() => runAgainAndAgain(witness, slow ? 1 : 0.05)));
  const results = await Promise.all(theirs);
  expect(results.map(({ code, stderr }) => [code, stderr])).toEqual(results.map(() => [0, '']));
  const said = [...ours.map((each) => each.said), ...results.map(({ stdout }) => stdout)].join('');
  const found = {
    violations: said.match(/violation/g)?.length ?? 0,
    own: ours.reduce((sum, each) => sum + each.claims, 0),
    theirs: results.reduce((sum, { stdout }) => sum + Number(/claims (\d+)/.exec(stdout)?.[1]), 0),
  };
  console.log(`${found.own} of our claims, ${found.theirs} of safe-gpu's, ${found.violations} violations`);
  return found;
}

test('safe-gpu’s programs and ours claim at once: no GPU is held twice', {
  timeout: (SECONDS + 60) * 1000,
}, async () => {
  machine = new Machine(2);
  process.env.GPU_OWNER_CONVENTIONS = 'safe-gpu';
  try {
    const { violations, own, theirs } = await claimAtOnce(false);
    expect(violations).toBe(0);
    expect(own).toBeGreaterThan(SECONDS / 4);
    expect(theirs).toBeGreaterThan(SECONDS / 4);
  } finally {
    delete process.env.GPU_OWNER_CONVENTIONS;
  }
});

test('the witness sees that GPUs are held twice without the convention safe-gpu', {
  timeout: 150_000,
}, async () => {
  machine = new Machine(2);
  process.env.GPU_OWNER_CONVENTIONS = 'none';
  try {
    let seen = 0;
    for (let round = 0; seen === 0 && round < 6; round++) seen = (await claimAtOnce(true)).violations;
    expect(seen).toBeGreaterThan(0);
  } finally {
    delete process.env.GPU_OWNER_CONVENTIONS;
  }
});

test('the witness sees that GPUs are held twice without the convention gpu_lock', async () => {
  machine = new Machine(1);
  const directory = directoryOf(machine, 'gpu_lock');
  const witness = randomBytes(8).toString('hex');
  const env = { GPU_OWNER_CONVENTIONS: 'none' };
  // Each counts from its own start, and they must overlap.
  const running = [
    machine.start([process.execPath, claimant, witness, '8', '1'], { env }),
    startOriginal(machine, ['loop', 'gpu_lock', directory, witness, '1', '8']),
  ];
  const results = await Promise.all(running.map((child) => finished(child)));
  expect(results.map(({ stdout }) => stdout).join('')).toMatch(/violation: GPU 0/);
});
