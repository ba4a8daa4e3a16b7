// Our claims and programs that lock as other tools do, all at once, killed at random. That no GPU is held twice is told by a
// witness that neither knows.
//
// gpu_lock and PID files are checked first and written later by their originals, so there is a moment in which they themselves
// aren't safe (docs/conventions.md has how long). No other moment is unsafe, as promised: these programs here make their files
// in one step.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { Claimants } from '../support/claimants.ts';
import { Machine, NOBODY, pause, until, whyNotNobody } from '../support/machine.ts';
import {
  directoryOf,
  here,
  makeDirectory,
  NAMES,
  placeOf,
  SAFE_GPU,
  startOriginal,
} from '../support/other-tools.ts';
import { withTimeouts } from '../support/time.ts';

const GPUS = 4;
const SECONDS = process.env.GPU_OWNER_SOAK ? 240 : 1.5;
/** Claims of each side without which a race shows nothing. */
const MIN_CLAIMS = Math.ceil(SECONDS / 2);
/** How long a busy machine may take longer for these, in s. */
const MAX_MORE_SECONDS = 60;
const claimant = join(import.meta.dirname, '../integration/fixtures/share-claimant.mjs');
const twoUsers = whyNotNobody() === null;

let machine: Machine;
afterEach(() => machine.close());

/** Between two kills or stops. */
const TROUBLE_MS = 250;

test.each(NAMES)(
  `%s: shares, whole GPUs and programs of the tool${twoUsers ? ', of two users,' : ''} at once, with kills and stops: none is over another`,
  { timeout: (SECONDS + 60 + MAX_MORE_SECONDS) * 1000 },
  async (name) => {
    machine = new Machine(GPUS);
    const directory = directoryOf(machine, name);
    makeDirectory(placeOf(machine, '/tmp'));
    const claimants = new Claimants(machine);
    const { path } = claimants.witness;
    const user = (i: number) => (twoUsers && i % 2 === 1 ? { uid: NOBODY } : {});
    for (let i = 0; i < 6; i++) {
      const umask = i % 3 === 0 ? '077' : '022';
      const words = [process.execPath, claimant, path, String(SECONDS), '0.7'];
      claimants.add(() => machine.start(words, { ...here(machine), ...user(i), umask }));
    }
    for (let i = 0; i < 5; i++) {
      const words = ['loop', name, directory, path, String(GPUS), String(SECONDS)];
      claimants.add(() => startOriginal(machine, words, { ...user(i), umask: '0' }));
    }
    await race(claimants, name);
    const free = await machine.runCommand(
      ['run', '--no-wait', '-n', String(GPUS), '--', 'true'],
      here(machine),
    );
    // A file that was being written when its writer was killed counts as held for some seconds.
    const written = NAMES.filter((each) => each !== 'gpu-scheduler'); // whose locks are the kernel's
    if (free.code !== 0) expect(free.stderr).toMatch(new RegExp(`leased by .* \\((${written.join('|')})\\)`));
  },
);

/** How many claims the witness has seen of ours, and of a tool's. */
function claimsSeen({ witness }: Claimants): [ours: number, theirs: number] {
  const log = readFileSync(witness.path, 'utf8');
  const count = (pattern: RegExp) => log.match(pattern)?.length ?? 0;
  return [count(/ had \d+ \d+ [\d.]+$/gm), count(/ had \d+ \d+$/gm)]; // only ours note the part
}

/** Kills and suspends for some seconds, and then until the witness has seen enough claims of both sides. Ends all. */
async function race(claimants: Claimants, tool: string): Promise<void> {
  const start = performance.now();
  const seconds = () => (performance.now() - start) / 1000;
  const isEnough = () => Math.min(...claimsSeen(claimants)) >= MIN_CLAIMS;
  while (seconds() < SECONDS || (seconds() < SECONDS + MAX_MORE_SECONDS && !isEnough())) {
    await pause(TROUBLE_MS);
    claimants.trouble();
  }
  const took = seconds().toFixed(1);
  const { errors } = await claimants.end();
  expect(errors).toEqual([]);
  const [ours, theirs] = claimsSeen(claimants);
  console.log(`${ours} of our leases and shares, ${theirs} claims of ${tool} in ${took} s`);
  expect(Math.min(ours, theirs)).toBeGreaterThanOrEqual(MIN_CLAIMS);
}

/** Programs of safe-gpu, shares and whole GPUs, all at once. @param window how slow safe-gpu's are between look and allocation, in s */
function besideSafeGPU(window: string, conventions: string): Claimants {
  const claimants = new Claimants(machine);
  const { path } = claimants.witness;
  const lock = join(makeDirectory(placeOf(machine, '/tmp/safe_gpu')), SAFE_GPU);
  const tools = [join(binaries(), 'gpu-owner-simulator'), join(binaries(), 'simulator/libcuda.so.1')];
  for (let i = 0; i < 3; i++) {
    const theirs = ['safe-gpu-loop', lock, ...tools, path, '600'];
    claimants.add(() => startOriginal(machine, theirs, { env: { WINDOW: window } }));
    // These have placeholders, which is all that safe-gpu sees of them.
    const ours = [process.execPath, claimant, path, '600', '0.8', 'keep'];
    claimants.add(() => machine.start(ours, { env: { GPU_OWNER_CONVENTIONS: conventions } }));
  }
  return claimants;
}

async function untilViolated(claimants: Claimants): Promise<void> {
  const isSeen = () => {
    try {
      claimants.witness.check();
      return false;
    } catch (error) {
      return /had (two )?holders/.test(String(error));
    }
  };
  await until(isSeen);
  await expect(claimants.end()).rejects.toThrow('holders');
}

test('safe-gpu’s programs, shares and whole GPUs at once, with kills and stops: none is over another', {
  timeout: (SECONDS + 60 + MAX_MORE_SECONDS) * 1000,
}, async () => {
  machine = new Machine(2);
  const claimants = besideSafeGPU('0.02', 'safe-gpu');
  await race(claimants, 'safe-gpu');
});

test('the witness sees that GPUs are held twice without the convention safe-gpu', {
  timeout: 150_000,
}, async () => {
  machine = new Machine(2);
  await untilViolated(besideSafeGPU('0.5', 'none'));
});

/** How long nvidia-smi takes, in s: 1 to 3 for each GPU where nothing keeps the driver awake. */
const QUERY_SECONDS = process.env.GPU_OWNER_SOAK ? [0, 0.5, 1.5, 5] : [0.5];

test.each(QUERY_SECONDS)(
  'gpu_lock’s programs, whose nvidia-smi takes %s s between look and lock, and whole GPUs at once: none is over another',
  { timeout: (SECONDS + 90) * 1000 },
  async (seconds) => {
    machine = new Machine(3);
    const claimants = new Claimants(machine);
    const { path } = claimants.witness;
    const smi = join(machine.directory, 'nvidia-smi');
    writeFileSync(smi, `#!/bin/sh\nsleep ${seconds}\n`, { mode: 0o755 });
    const directory = directoryOf(machine, 'gpu_lock');
    writeFileSync(join(directory, '.seen-by-gpu-owner'), ''); // otherwise the first one may be missed
    const env = withTimeouts({ gpuLock: 2_000 }); // more than a busy machine takes to start nvidia-smi
    // One for each GPU: two of its own programs can meet in that time.
    for (let gpu = 0; gpu < 3; gpu++) {
      const theirs = ['query-loop', directory, String(gpu), smi, path, '600'];
      claimants.add(() => startOriginal(machine, theirs));
      // They say that they wait for nvidia-smi.
      const ours = ['sh', '-c', 'exec "$@" 2>&1', 'sh', process.execPath, claimant, path, '600', '0'];
      claimants.add(() => machine.start(ours, { env }));
    }
    const end = performance.now() + SECONDS * 1000;
    const isEnough = () => performance.now() > end && Math.min(...claimsSeen(claimants)) > 0;
    await until(isEnough, (SECONDS + MAX_MORE_SECONDS) * 1000);
    const { errors } = await claimants.end();
    expect(errors).toEqual([]);
    const [ours, theirs] = claimsSeen(claimants);
    console.log(`nvidia-smi ${seconds} s: ${ours} of our leases, ${theirs} claims of gpu_lock`);
  },
);

test('the witness sees that GPUs are held twice without the convention gpu_lock', async () => {
  machine = new Machine(1);
  const claimants = new Claimants(machine);
  const { path } = claimants.witness;
  const env = { GPU_OWNER_CONVENTIONS: 'none' };
  claimants.add(() => machine.start([process.execPath, claimant, path, '600'], { env }));
  const theirs = ['loop', 'gpu_lock', directoryOf(machine, 'gpu_lock'), path, '1', '600'];
  claimants.add(() => startOriginal(machine, theirs));
  await untilViolated(claimants);
});
