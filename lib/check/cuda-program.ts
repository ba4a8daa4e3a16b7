import { computePids, type GPU, hasPidNamespace, label, snapshotSync } from '../gpus/index.ts';
import { listWords, now, sleep, TIMEOUTS } from '../platform/index.ts';
import {
  type Context,
  cudaList,
  cudaProgram,
  digitsOf,
  lookAt,
  milliseconds,
  type RunningProgram,
  sameIn,
} from './context.ts';
import { AFTER_CRASHES, fail, SEE_STATUS, skip } from './finding.ts';
import { timeOfNvidiaSmi } from './nvidia-smi.ts';
import { runProgram, Subprocess } from './subprocess.ts';

/** Runs a command that prints the GPUs which CUDA shows to it. @returns the digits of their UUIDs, in CUDA's order */
export async function cudaDevices(words: readonly string[]): Promise<string[]> {
  const { code, signal, stdout, stderr } = await runProgram(words, 50_000);
  if (code === 0) return stdout.split('\n').filter(Boolean).map(digitsOf);
  // The message would name users and their commands.
  const refusal = /"code":"(ERR_\w+)"/.exec(stderr)?.[1];
  if (refusal !== undefined) fail(`A claim of free GPUs fails (${refusal}).`, SEE_STATUS);
  return fail(
    `CUDA does not start: ${stdout.trim() || stderr.trim().split('\n').at(-1) || `exit code ${signal ?? code}`}.`,
    'Run `gpu-owner doctor`: it looks for the CUDA library.',
  );
}

const START_TIMEOUT_MS = 60_000;
/** How long a driver may take to list a process that has a context. */
const MAX_LISTING_MS = 2_000;
/** How long a claim waits for remains of a dead process. */
const MAX_FORGETTING_MS = 2_000;
const POLL_MS = 5;
const MiB = 2 ** 20;
/** More than a driver's own fluctuation, less than a context. */
const SLACK_BYTES = 32 * MiB;

/** own: by its PID on every GPU; other: each GPU has a new process, by another PID. */
type Listing = 'own' | 'other';

export function listingOf(pid: number, before: readonly GPU[], after: readonly GPU[]): Listing | null {
  const news = after.map((gpu) => newPids(before, gpu));
  if (news.every((pids) => pids.includes(pid))) return 'own';
  return news.every((pids) => pids.length > 0) ? 'other' : null;
}

/** The processes on a GPU that weren't there before. */
export function newPids(before: readonly GPU[], gpu: GPU): number[] {
  const known = before.filter(({ uuid }) => uuid === gpu.uuid).flatMap(computePids);
  return computePids(gpu).filter((pid) => !known.includes(pid));
}

/** The CUDA program that an earlier check has started. */
function running({ running: program }: Context): RunningProgram {
  return program ?? skip('the CUDA program does not start (see cuda-listed)');
}

/** Starts a CUDA program, which then runs for the checks that follow: the driver lists it. */
export async function checkCudaListed(context: Context): Promise<string> {
  const before = lookAt(context.gpus);
  const began = now();
  const program = new Subprocess(cudaProgram(context.gpus));
  let readyMs: number | null = null;
  let listedMs: number | null = null;
  let listing: Listing | null = null;
  while (readyMs === null || (listing === null && now() - began - readyMs <= MAX_LISTING_MS)) {
    const line = await program.line(POLL_MS);
    if (line?.startsWith('ready')) readyMs = now() - began;
    else if (line !== null || program.isOver)
      fail(`A CUDA program fails on the claimed GPUs: ${line ?? 'no answer'}`, 'Run `gpu-owner doctor`.');
    listing = listingOf(program.pid, before, lookAt(context.gpus));
    if (listing !== null) listedMs ??= now() - began;
    if (readyMs === null && now() - began > START_TIMEOUT_MS)
      fail(
        `A CUDA program is not ready after ${milliseconds(START_TIMEOUT_MS)}.`,
        'See `dmesg | grep -i nvrm`.',
      );
  }
  context.running = { program, before, state: listing };
  const start = `CUDA starts in ${milliseconds(readyMs)}`;
  if (before.every(({ processes }) => processes === null))
    skip(`${start}, but the driver lists no processes, as under WSL`);
  if (listing === null || listedMs === null) {
    fail(
      `${start}, but the driver does not list the process on its GPUs ${milliseconds(MAX_LISTING_MS)} later.`,
      'Programs that only ask the driver do not see who uses a GPU, so use claims for all. In a container, try `--pid=host`.',
    );
  }
  const when = `the driver lists it ${milliseconds(listedMs)} after its start`;
  if (listing === 'own') return `${start}; ${when}, by its own PID.`;
  if (hasPidNamespace()) return `${start}; ${when}, by another PID, as drivers may in a PID namespace.`;
  return fail(`${start}; ${when}, but by a PID that is not its own.`);
}

/** After kill -9, the driver forgets the process while a claim waits for that. */
export async function checkCudaKilled(context: Context): Promise<string> {
  const { program, before, state: listing } = running(context);
  const began = now();
  program.kill('SIGKILL');
  let listedMs: number | null = listing === null ? 0 : null;
  let memoryMs: number | null = null;
  while ((listedMs === null || memoryMs === null) && now() - began < TIMEOUTS.forgetting) {
    const after = lookAt(context.gpus);
    const passed = now() - began;
    if (after.every((gpu) => newPids(before, gpu).length === 0)) listedMs ??= passed;
    if (after.every((gpu) => isBackTo(before, gpu))) memoryMs ??= passed;
    await sleep(POLL_MS);
  }
  const tellsMemory = before.some(({ memory }) => memory.usedBytes !== null);
  const at = (time: number | null) =>
    time === null ? `not within ${milliseconds(TIMEOUTS.forgetting)}` : `after ${milliseconds(time)}`;
  const facts = [
    ...(listing === null ? [] : [`the driver stops listing the process ${at(listedMs)}`]),
    ...(tellsMemory ? [`its memory is free ${at(memoryMs)}`] : []),
  ];
  if (facts.length === 0) skip('the driver tells neither processes nor memory');
  const text = `After kill -9, ${listWords(facts)}`;
  if (listedMs === null || memoryMs === null || Math.max(listedMs, memoryMs) > MAX_FORGETTING_MS) {
    fail(`${text}. A claim waits ${milliseconds(MAX_FORGETTING_MS)} for that.`, AFTER_CRASHES);
  }
  return `${text}.`;
}

/** Whether no more of a GPU's memory is in use than before. */
export function isBackTo(before: readonly GPU[], gpu: GPU): boolean {
  const old = sameIn(before, gpu)?.memory.usedBytes ?? null;
  const { usedBytes } = gpu.memory;
  return old === null || usedBytes === null || usedBytes <= old + SLACK_BYTES;
}

/** Longer, and every claim is slow; a GPU that doesn't answer for 0.8 s counts as hung. In ms. */
const MAX_SNAPSHOT_MS = 500;
const SNAPSHOT_TIME_MS = 500;

export async function checkSnapshot({ startedInMs }: Context): Promise<string> {
  const times: number[] = [];
  let all: GPU[] = [];
  for (const end = now() + SNAPSHOT_TIME_MS; times.length === 0 || (now() < end && times.length < 500); ) {
    const began = now();
    all = snapshotSync();
    times.push(now() - began);
  }
  const median = times.toSorted((a, b) => a - b)[times.length >> 1] ?? 0;
  const count = all.filter(({ instance }) => instance === null).length;
  const text = `A snapshot of ${count === 1 ? 'the GPU' : `all ${count} GPUs`} takes ${milliseconds(median)}`;
  if (median > MAX_SNAPSHOT_MS) {
    fail(
      `${text}; every claim takes at least as long, and a GPU that is silent for 0.8 s counts as hung.`,
      'Turn on persistence mode, as root: `nvidia-smi -pm 1`. If it is on, see `dmesg | grep -i nvrm`.',
    );
  }
  const other = await timeOfNvidiaSmi();
  return `${text}, the first one ${milliseconds(startedInMs)}${other === null ? '' : `; nvidia-smi takes ${milliseconds(other)}`}.`;
}

/** A command sees exactly the claimed GPUs, in their order. */
export async function checkCudaDevices({ gpus }: Context): Promise<string> {
  const seen = await cudaDevices(cudaList());
  const wanted = gpus.map(({ uuid }) => digitsOf(uuid));
  if (seen.join() !== wanted.join()) {
    const others = seen.filter((digits) => !wanted.includes(digits)).length;
    const missing = gpus.filter(({ uuid }) => !seen.includes(digitsOf(uuid))).map(label);
    fail(
      `CUDA shows ${seen.length} GPUs to a command for which ${gpus.length} ${gpus.length === 1 ? 'was' : 'were'} claimed` +
        `${others > 0 ? `, ${others} of them not claimed` : ''}` +
        `${missing.length > 0 ? `; GPU ${listWords(missing)} is missing` : ''}` +
        `${others === 0 && missing.length === 0 ? ', in another order' : ''}.`,
      'Check that nothing changes CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER in between (shell profiles, wrappers).',
    );
  }
  return `A command sees GPU ${listWords(gpus.map(label))} and no other.`;
}

/** A claim inside of a job gets GPUs of the job, and no other claim gets these meanwhile. */
export async function checkNestedClaims({ command, claim, gpus }: Context): Promise<string> {
  const inside = ['--placeholder=none', ...claim];
  const wanted = gpus.map(({ uuid }) => digitsOf(uuid));
  // By numbers, too: then CUDA's order counts.
  for (const form of ['uuid', 'index']) {
    const words = [
      ...command,
      'run',
      `--gpus=${gpus.length}`,
      `--visible-devices=${form}`,
      '--no-wait',
      ...inside,
      '--',
      ...cudaList(),
    ];
    const seen = await cudaDevices(words);
    if (seen.toSorted().join() === wanted.toSorted().join()) continue;
    fail(
      `A claim inside of the job, which names GPUs by ${form}, shows ${seen.filter((each) => wanted.includes(each)).length} of its ${gpus.length} GPUs, and ${seen.filter((each) => !wanted.includes(each)).length} others.`,
    );
  }
  const holder = new Subprocess([...command, 'hold', `--gpus=${gpus.length}`, ...inside]);
  const answer = await holder.line(30_000);
  const second = await runProgram(
    [...command, 'run', '--no-wait', '--gpus=1', ...inside, '--', 'true'],
    30_000,
  );
  await holder.stop();
  if (answer === null) fail('A claim inside of the job is refused, though the job has the GPUs.');
  if (second.code !== 75) {
    fail(
      `A second claim inside of the job is not refused (exit code ${second.code}), though the first one has all GPUs.`,
      'Locks may not work here: run `gpu-owner doctor`.',
    );
  }
  return 'A claim inside of the job gets its GPUs, named by UUID or number, and a second one is refused.';
}
