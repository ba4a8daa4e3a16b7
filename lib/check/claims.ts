import type { ClaimOptions, GPUStatus } from '../claims/index.ts';
import { computePids, type GPU, label } from '../gpus/index.ts';
import { formatBytes, now, TIMEOUTS } from '../platform/index.ts';
import { getGPUs, getQueue } from '../status/index.ts';
import {
  type Context,
  cudaList,
  cudaProgram,
  digitsOf,
  lookAt,
  lookAtOne,
  milliseconds,
  until,
} from './context.ts';
import { cudaDevices, isBackTo, listingOf } from './cuda-program.ts';
import { AFTER_CRASHES, fail, SEE_STATUS, skip } from './finding.ts';
import { runProgram, Subprocess, within } from './subprocess.ts';

/** A hand-over takes as long as CUDA's start; longer than this, something waits for a timeout. */
const MAX_HAND_OVER_MS = 10_000;
const MiB = 2 ** 20;
/** A CUDA context has room in it on every GPU. */
const MIN_SHARE_MIB = 1_024;
/** The part of a GPU's memory that a share gets: two have room, and three don't. */
const SHARE = 0.4;
const POLL_MS = 5;
/** How long a claim may take to join the wait queue. */
const QUEUE_TIMEOUT_MS = 20_000;
const QUEUE_POLL_MS = 20;

const LOCKS_FAIL =
  'Locks do not work in the lock directory: run `gpu-owner doctor`, and use another file system (GPU_OWNER_LOCK_DIR).';

/** With the start of CUDA, which takes seconds on a machine of many GPUs. */
export const CLAIM_TIMEOUT_MS = 60_000;

/** Claims of the same GPUs, again and again, by commands of their own. */
export class Claims {
  readonly gpus: Context['gpus'];
  readonly options: ClaimOptions;
  readonly #command: readonly string[];
  readonly #claim: readonly string[];

  constructor({ command, claim, gpus, options }: Context) {
    this.#command = command;
    this.#claim = claim.filter((word) => !word.startsWith('--devices'));
    this.gpus = gpus;
    this.options = options;
  }

  /** The words of a command that claims these GPUs, all of them. */
  words(
    name: 'run' | 'hold',
    more: readonly string[] = name === 'run' ? ['--no-wait'] : [],
    gpus: readonly GPU[] = this.gpus,
  ): string[] {
    const which = [`--gpus=${gpus.length}`, `--devices=${gpus.map(({ uuid }) => uuid).join()}`];
    return [...this.#command, name, ...which, ...more, ...this.#claim];
  }

  /** The GPUs that a claim with the same conditions may get. */
  allowed(): Promise<GPUStatus[]> {
    const { lockDirectory, conventions, devices, exclude } = this.options;
    return getGPUs({ lockDirectory, conventions, devices, exclude });
  }

  async states(gpus: readonly GPU[] = this.gpus): Promise<GPUStatus[]> {
    const { lockDirectory, conventions } = this.options;
    const all = await getGPUs({ lockDirectory, conventions });
    return all.filter(({ uuid }) => gpus.some((gpu) => gpu.uuid === uuid));
  }

  /** Why a claim of free GPUs was refused. Another claim may have them by now, which is no fault. */
  async explainRefusal(what: string, remedy = SEE_STATUS, gpus: readonly GPU[] = this.gpus): Promise<never> {
    const states = await this.states(gpus);
    if (states.some(({ lease }) => lease !== null)) skip('somebody else has claimed the GPUs in between');
    const reasons = states.flatMap((gpu) =>
      gpu.state === 'free' ? [] : [`GPU ${label(gpu)} is ${kindOf(gpu)}`],
    );
    return fail(`${what}: ${reasons.join(', ') || 'though the GPUs are free'}.`, remedy);
  }

  /** Claims by `hold`. @returns null: it was refused */
  async hold(more?: readonly string[], gpus?: readonly GPU[]): Promise<Subprocess | null> {
    const holder = new Subprocess(this.words('hold', more, gpus));
    const line = await holder.line(CLAIM_TIMEOUT_MS);
    if (line !== null) return holder;
    await holder.stop();
    return null;
  }
}

/** Without what names processes and users. */
function kindOf({ state, health, processes, memory }: GPUStatus): string {
  if (health !== 'ok') return health;
  const pids = (processes ?? []).length;
  return `${state} (${pids} processes listed, ${Math.round((memory.usedBytes ?? 0) / 2 ** 20)} MiB in use)`;
}

/** Whether each GPU has a process that it hadn't before. */
export function areAllNew(before: readonly GPU[], after: readonly GPU[]): boolean {
  return listingOf(-1, before, after) !== null;
}

/** A second claim of claimed GPUs is refused. @param what the finding so far, without a full stop @returns it, and this */
export async function checkRefusal(claims: Claims, gpus: readonly GPU[], what: string): Promise<string> {
  const began = now();
  const { code } = await runProgram(
    [...claims.words('run', undefined, gpus), '--', 'true'],
    CLAIM_TIMEOUT_MS,
  );
  const took = now() - began;
  if (code === 0) fail(`${what}, and a second claim gets them as well.`, LOCKS_FAIL);
  if (code !== 75) fail(`${what}, and a second claim fails with exit code ${code} instead of 75.`);
  return `${what}; a second claim is refused, in ${milliseconds(took)}`;
}

/** A claim is seen on the GPUs by everybody who asks the driver, before it is answered. */
export async function checkPlaceholder(context: Context): Promise<string> {
  const claims = new Claims(context);
  const { gpus } = claims;
  if (gpus.some(({ computeMode }) => computeMode?.startsWith('exclusive-')))
    skip('in an exclusive compute mode, claims have no placeholder');
  const before = lookAt(claims.gpus);
  const began = now();
  const holder = new Subprocess(claims.words('hold'));
  let seenMs: number | null = null;
  let claimedMs: number | null = null;
  try {
    for (const end = began + CLAIM_TIMEOUT_MS; now() < end; ) {
      const isAnswered = (await holder.line(POLL_MS)) !== null;
      if (seenMs === null && areAllNew(before, lookAt(claims.gpus))) seenMs = now() - began;
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
export async function checkExclusion(context: Context): Promise<string> {
  const claims = new Claims(context);
  const holder = await claims.hold(['--placeholder=none']);
  if (holder === null) return claims.explainRefusal('A claim is refused');
  try {
    return `${await checkRefusal(claims, claims.gpus, 'A claim has the GPUs')}.`;
  } finally {
    await holder.stop();
  }
}

/** Released GPUs go to the claim that waits for them. */
export async function checkHandOver(context: Context): Promise<string> {
  const claims = new Claims(context);
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

/** The process that holds the leases of a command is killed: the next claim gets them at once, and the right ones. */
export async function checkKeeperKilled(context: Context): Promise<string> {
  const claims = new Claims(context);
  const holder = await claims.hold();
  if (holder === null) return claims.explainRefusal('A claim is refused');
  holder.kill('SIGKILL');
  const began = now();
  // A placeholder notices a moment later, and the driver may list it for a moment more.
  const words = claims.words('run', ['--wait=10s', '--placeholder=none']);
  const { code, stdout } = await runProgram([...words, '--', ...cudaList()], CLAIM_TIMEOUT_MS);
  const took = now() - began;
  const text = 'After kill -9 of the process that had the leases,';
  if (code === 75) await claims.explainRefusal(`${text} the next claim is refused for 10 s`, AFTER_CRASHES);
  if (code !== 0) fail(`${text} the next command fails with exit code ${code}.`);
  const sorted = (uuids: readonly string[]) => uuids.map(digitsOf).sort().join();
  if (sorted(stdout.split('\n').filter(Boolean)) !== sorted(claims.gpus.map(({ uuid }) => uuid)))
    fail(`${text} the next command sees other GPUs than the claimed ones.`);
  return `${text} the next claim gets the GPUs, and its command has run ${milliseconds(took)} later.`;
}

/** Two jobs with shares of a GPU use CUDA at the same time; a third share that has no room is refused. */
export async function checkShares(context: Context): Promise<string> {
  const claims = new Claims(context);
  const [gpu] = claims.gpus;
  const size = Math.floor((SHARE * (gpu.memory.totalBytes ?? 0)) / MiB);
  const share = formatBytes(size * MiB);
  if (size < MIN_SHARE_MIB || gpu.instance !== null)
    skip('the GPU is too small, or an instance, or tells no memory');
  if (gpu.computeMode?.startsWith('exclusive-')) skip('in an exclusive compute mode, GPUs are not shared');
  const options = [`--memory=${size}MiB`, '--no-wait', '--placeholder=none'];
  const words = [...claims.words('run', options, [gpu]), '--'];
  const jobs: Subprocess[] = [];
  try {
    for (const which of ['first', 'second']) {
      const job = new Subprocess([...words, ...cudaProgram([gpu])]);
      jobs.push(job);
      const line = await job.line(CLAIM_TIMEOUT_MS);
      if (line === null)
        return await claims.explainRefusal(`A ${which} share of ${share} is refused`, undefined, [gpu]);
      if (line !== 'ready') fail(`CUDA fails in the ${which} share of a GPU: ${line}.`);
    }
    const text = `Two jobs with ${share} each use CUDA on GPU ${label(gpu)}`;
    const { code } = await runProgram([...words, 'true'], CLAIM_TIMEOUT_MS);
    if (code === 0) fail(`${text}, and a third share gets memory that they have.`, LOCKS_FAIL);
    if (code !== 75) fail(`${text}, and a third share fails with exit code ${code} instead of 75.`);
    return `${text}; a third share is refused.`;
  } finally {
    await Promise.all(jobs.map((job) => job.stop()));
    await until(() => isBackTo(claims.gpus, lookAtOne(gpu)), TIMEOUTS.forgetting);
  }
}

/** A preemptible job that uses CUDA gives way to a claim that waits. */
export async function checkPreemption(context: Context): Promise<string> {
  if (process.env.GPU_OWNER_JOB) skip('inside of a job, no claim gives way');
  const claims = new Claims(context);
  const options = ['--preemptible', '--no-wait', '--placeholder=none'];
  const job = new Subprocess([...claims.words('run', options), '--', ...cudaProgram(claims.gpus)]);
  try {
    const line = await job.line(CLAIM_TIMEOUT_MS);
    if (line === null) return await claims.explainRefusal('A preemptible claim is refused');
    const began = now();
    const words = claims.words('run', ['--wait=20s', '--placeholder=none']);
    const { code } = await runProgram([...words, '--', 'true'], CLAIM_TIMEOUT_MS);
    const text = 'A claim that waits for the GPUs of a preemptible job';
    if (code === 75) await claims.explainRefusal(`${text} is refused after 20 s`, AFTER_CRASHES);
    if (code !== 0) fail(`${text} fails with exit code ${code}.`);
    if (!(await within(job.ended, TIMEOUTS.forgetting)))
      fail(`${text} gets them while that job still runs.`, LOCKS_FAIL);
    return `${text} gets them, and its command has run ${milliseconds(now() - began)} later.`;
  } finally {
    await job.stop();
  }
}

/** A MIG instance is claimed, seen and listed as a GPU is. */
export async function checkInstance(context: Context): Promise<string> {
  const claims = new Claims(context);
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
  const before = lookAt([free]);
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
