import type { ClaimOptions } from '../claims/index.ts';
import { computePids, label } from '../gpus/index.ts';
import { now } from '../platform/index.ts';
import { getQueue } from '../status/index.ts';
import { AFTER_CRASHES, fail, skip } from './check.ts';
import { areAllNew, CLAIM_TIMEOUT_MS, Claims } from './claims.ts';
import { type Context, cudaList, digitsOf, lookAtOne, milliseconds } from './context.ts';
import { cudaDevices } from './cuda-program.ts';
import { checkAllGPUs, checkFullGPU, checkPlaceholderMemory } from './load.ts';
import { checkPyTorchComputes } from './pytorch.ts';
import { runProgram, Subprocess, within } from './subprocess.ts';

/** A hand-over takes as long as CUDA's start; longer than this, something waits for a timeout. */
const MAX_HAND_OVER_MS = 10_000;
const POLL_MS = 5;
/** How long a claim may take to join the wait queue. */
const QUEUE_TIMEOUT_MS = 20_000;
const QUEUE_POLL_MS = 20;

const LOCKS_FAIL =
  'Locks do not work in the lock directory: run `gpu-owner doctor`, and use another file system (GPU_OWNER_LOCK_DIR).';

/** Makes the checks that claim from the machine as anybody does. Nothing is claimed before and after. */
export async function checkOutside(context: Context, options: ClaimOptions): Promise<void> {
  const { runCheck } = context;
  const claims = new Claims(context, options);
  await runCheck('placeholder', () => checkPlaceholder(claims));
  await runCheck('exclusion', () => checkExclusion(claims));
  await runCheck('hand-over', () => checkHandOver(claims));
  await runCheck('owner-killed', () => checkOwnerKilled(claims));
  await runCheck('keeper-killed', () => checkKeeperKilled(claims));
  await runCheck('placeholder-memory', () => checkPlaceholderMemory(claims));
  await runCheck('all-gpus', () => checkAllGPUs(claims));
  await runCheck('pytorch-computes', () => checkPyTorchComputes(claims));
  await checkFullGPU(claims, runCheck);
  await runCheck('mig', () => checkInstance(claims));
}

/** A claim is seen on the GPUs by everybody who asks the driver, before it is answered. */
async function checkPlaceholder(claims: Claims): Promise<string> {
  const { gpus } = claims;
  if (gpus.some(({ computeMode }) => computeMode?.startsWith('exclusive-')))
    skip('in an exclusive compute mode, claims have no placeholder');
  const before = claims.look();
  const began = now();
  const holder = new Subprocess(claims.words('hold'));
  let seenMs: number | null = null;
  let claimedMs: number | null = null;
  try {
    for (const end = began + CLAIM_TIMEOUT_MS; now() < end; ) {
      const isAnswered = (await holder.line(POLL_MS)) !== null;
      if (seenMs === null && areAllNew(before, claims.look())) seenMs = now() - began;
      if (isAnswered) claimedMs = now() - began;
      if (claimedMs !== null || (await within(holder.ended, 0))) break;
    }
    if (claimedMs === null) return await claims.explainRefusal('A claim is refused');
    const text = `A claim takes ${milliseconds(claimedMs)}`;
    const states = await claims.states();
    if (states.some(({ state }) => state !== 'leased'))
      fail(`${text}, but \`gpu-owner status\` does not show the lease.`);
    if (before.every(({ processes }) => processes === null))
      skip(`${text}; the driver lists no processes, as under WSL`);
    if (seenMs === null) {
      fail(
        `${text}, but the driver lists no process of it on the GPUs.`,
        'Tools that only ask the driver treat claimed GPUs as free, so use claims for all. In a container, try `--pid=host`.',
      );
    }
    return `${text}. The driver lists its placeholder ${milliseconds(seenMs)} after its start, before the command runs.`;
  } finally {
    await holder.stop();
  }
}

/** A second claim doesn't get claimed GPUs. */
async function checkExclusion(claims: Claims): Promise<string> {
  const holder = await claims.hold(['--no-wait', '--placeholder=none']);
  if (holder === null) return claims.explainRefusal('A claim is refused');
  try {
    const began = now();
    const { code } = await runProgram([...claims.words('run'), '--', 'true'], CLAIM_TIMEOUT_MS);
    const took = now() - began;
    if (code === 0) {
      fail('A second claim gets GPUs that are claimed.', LOCKS_FAIL);
    }
    if (code !== 75) fail(`A second claim fails with exit code ${code} instead of 75.`);
    return `A second claim is refused, in ${milliseconds(took)}.`;
  } finally {
    await holder.stop();
  }
}

/** Released GPUs go to the claim that waits for them. */
async function checkHandOver(claims: Claims): Promise<string> {
  const holder = await claims.hold();
  if (holder === null) return claims.explainRefusal('A claim is refused');
  const waiter = new Subprocess(claims.words('hold', ['--wait=60s']));
  try {
    const isQueued = async () => (await getQueue(claims.options)).some(({ pid }) => pid === waiter.pid);
    for (const end = now() + QUEUE_TIMEOUT_MS; now() < end && !(await isQueued()); ) {
      if ((await waiter.line(QUEUE_POLL_MS)) !== null)
        fail('A waiting claim gets GPUs that are still claimed.', LOCKS_FAIL);
    }
    const began = now();
    const [line] = await Promise.all([waiter.line(CLAIM_TIMEOUT_MS), holder.stop()]);
    const took = now() - began;
    if (line === null) return await claims.explainRefusal('A waiting claim does not get released GPUs');
    const text = `A waiting claim gets released GPUs after ${milliseconds(took)}, including CUDA's start`;
    if (took > MAX_HAND_OVER_MS)
      fail(`${text}.`, 'See the time that CUDA takes to start (check cuda-listed), and persistence mode.');
    return `${text}.`;
  } finally {
    await holder.stop();
    await waiter.stop();
  }
}

/** A program that holds GPUs and uses CUDA is killed: the next claim gets them at once, and the right ones. */
async function checkOwnerKilled(claims: Claims): Promise<string> {
  const owner = new Subprocess(claims.owner());
  const line = await owner.line(CLAIM_TIMEOUT_MS);
  if (line === null) {
    await owner.stop();
    return claims.explainRefusal('A claim by the library is refused');
  }
  owner.kill('SIGKILL');
  return nextClaim(claims, 'a program that had claimed');
}

/** The process that holds the lease for a command is killed. */
async function checkKeeperKilled(claims: Claims): Promise<string> {
  const holder = await claims.hold();
  if (holder === null) return claims.explainRefusal('A claim is refused');
  holder.kill('SIGKILL');
  return nextClaim(claims, 'the process that had the leases');
}

async function nextClaim(claims: Claims, killed: string): Promise<string> {
  const began = now();
  // A placeholder notices a moment later, and the driver may list it for a moment more.
  const words = claims.words('run', ['--wait=10s', '--placeholder=none']);
  const { code, stdout } = await runProgram([...words, '--', ...cudaList()], CLAIM_TIMEOUT_MS);
  const took = now() - began;
  if (code === 75) {
    await claims.explainRefusal(
      `After kill -9 of ${killed}, the next claim is refused for 10 s`,
      AFTER_CRASHES,
    );
  }
  if (code !== 0) fail(`After kill -9 of ${killed}, the next command fails with exit code ${code}.`);
  const seen = stdout.split('\n').filter(Boolean).map(digitsOf).sort();
  if (
    seen.join() !==
    claims.gpus
      .map(({ uuid }) => digitsOf(uuid))
      .sort()
      .join()
  )
    fail(`After kill -9 of ${killed}, the next command sees other GPUs than the claimed ones.`);
  return `After kill -9 of ${killed}, the next claim gets the GPUs, and its command has run ${milliseconds(took)} later.`;
}

/** A MIG instance is claimed, seen and listed as a GPU is. */
async function checkInstance(claims: Claims): Promise<string> {
  const allowed = await claims.allowed();
  const instances = allowed.filter(({ instance }) => instance !== null);
  if (instances.length === 0) skip('no GPU is divided by MIG');
  const free = instances.find(({ state }) => state === 'free');
  if (free === undefined) skip('no MIG instance is free');
  const words = claims.words('run', ['--no-wait', '--placeholder=none'], [free]);
  const seen = await cudaDevices([...words, '--', ...cudaList()]);
  if (seen.join() !== digitsOf(free.uuid))
    fail(
      `A command with MIG instance ${label(free)} sees ${seen.length} devices, and ${seen.includes(digitsOf(free.uuid)) ? 'others, too' : 'not this one'}.`,
    );
  const before = claims.look([free]);
  const holder = await claims.hold(undefined, [free]);
  if (holder === null) return claims.explainRefusal(`A claim of MIG instance ${label(free)} is refused`);
  try {
    const after = lookAtOne(free);
    const text = `A command with MIG instance ${label(free)} sees exactly that`;
    if (before[0]?.processes === null) return `${text}. The driver lists no processes there.`;
    if (!areAllNew(before, [after]))
      fail(
        `${text}, but the driver does not list its placeholder there (${computePids(after).length} processes).`,
      );
    return `${text}, and the driver lists its placeholder there.`;
  } finally {
    await holder.stop();
  }
}
