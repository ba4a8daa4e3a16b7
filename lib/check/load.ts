import { describeFailure } from '../claims/index.ts';
import { type GPU, hasPidNamespace, label } from '../gpus/index.ts';
import { formatBytes, listWords, now, TIMEOUTS } from '../platform/index.ts';
import { AFTER_CRASHES, fail, type RunCheck, skip } from './check.ts';
import { areAllNew, CLAIM_TIMEOUT_MS, type Claims, checkRefusal } from './claims.ts';
import { cudaProgram, lookAtOne, milliseconds, until } from './context.ts';
import { isBackTo, newPids, SLACK_BYTES } from './cuda-program.ts';
import { checkReadings } from './readings.ts';
import { runProgram, Subprocess } from './subprocess.ts';

const MiB = 2 ** 20;
const GiB = 2 ** 30;
/** How long a driver may take to list a process, or to count its memory, once CUDA has it. */
const MAX_LISTING_MS = 2_000;
/** A placeholder looks for its command four times a second. */
const MAX_LEAVING_MS = 5_000;
/** CUDA can't give away the last of the memory: it comes in pieces. */
const SPARE_BYTES = 512 * MiB;

const SEE_KERNEL = 'See `dmesg | grep -i nvrm`, and run `gpu-owner doctor`.';

/** A job that takes nearly all memory at once gets it, as its placeholder takes little and leaves. */
export async function checkPlaceholderMemory(claims: Claims): Promise<string> {
  const [gpu] = claims.gpus;
  if (gpu.computeMode?.startsWith('exclusive-'))
    skip('in an exclusive compute mode, claims have no placeholder');
  const look = () => lookAtOne(gpu);
  const before = look();
  const { usedBytes, freeBytes } = before.memory;
  if (usedBytes === null || freeBytes === null) skip('the driver does not tell how much memory is in use');
  const holder = await claims.hold(undefined, [gpu]);
  if (holder === null) return claims.explainRefusal('A claim is refused', undefined, [gpu]);
  const cost = (look().memory.usedBytes ?? 0) - usedBytes;
  await holder.stop();
  if (cost < MiB) skip('the claim has no placeholder here');
  await until(() => isBackTo([before], look()), TIMEOUTS.forgetting);
  // The job has a context of its own.
  const bytes = freeBytes - 2 * cost - SPARE_BYTES;
  if (bytes < cost) skip(`a job of any size has too little memory (${formatBytes(freeBytes)} are free)`);
  const job = new Subprocess([
    ...claims.words('run', ['--no-wait', '--placeholder=auto', '--until-input-closes'], [gpu]),
    '--',
    ...cudaProgram([gpu], bytes),
  ]);
  try {
    const line = await job.line(CLAIM_TIMEOUT_MS);
    const began = now();
    if (line === null) return await claims.explainRefusal('A claim is refused', undefined, [gpu]);
    const text = `A job that takes ${formatBytes(bytes)} of the ${formatBytes(freeBytes)} that are free, beside its placeholder of ${formatBytes(cost)},`;
    if (!line.startsWith('ready'))
      fail(`${text} fails: ${line}.`, 'Run jobs that need all memory with `--placeholder none`.');
    const most = usedBytes + cost + bytes + SLACK_BYTES;
    if (!(await until(() => (look().memory.usedBytes ?? 0) <= most, MAX_LEAVING_MS))) {
      fail(
        `${text} gets it, but the placeholder still has its memory ${milliseconds(MAX_LEAVING_MS)} later.`,
        'Run jobs that need all memory with `--placeholder none`.',
      );
    }
    return `${text} gets it; the placeholder is gone ${milliseconds(now() - began)} later.`;
  } finally {
    await job.stop();
    // For the next check: drivers take a moment to give much memory back.
    await until(() => isBackTo([before], look()), TIMEOUTS.forgetting);
  }
}

/** One claim gets all free GPUs, and its program has a context on each. */
export async function checkAllGPUs(claims: Claims): Promise<string> {
  const allowed = (await claims.allowed()).filter(
    ({ instance, migEnabled }) => instance === null && !migEnabled,
  );
  if (allowed.length < 2) skip('needs two whole GPUs');
  const free = allowed.filter(({ state }) => state === 'free');
  if (free.length < 2) skip('fewer than two whole GPUs are free');
  const before = claims.look(free);
  const began = now();
  const program = new Subprocess([
    ...claims.words('run', ['--no-wait', '--placeholder=none', '--until-input-closes'], free),
    '--',
    ...cudaProgram(free),
  ]);
  try {
    const line = await program.line(CLAIM_TIMEOUT_MS);
    const took = now() - began;
    const what = `A claim of all ${free.length} free GPUs`;
    if (line === null) return await claims.explainRefusal(`${what} is refused`, undefined, free);
    if (line !== 'ready') fail(`${what} is granted, but CUDA fails on them: ${line}.`, SEE_KERNEL);
    const text = `${what} has a CUDA context on each after ${milliseconds(took)}`;
    if (before.some(({ processes }) => processes === null)) return `${text}. The driver lists no processes.`;
    if (!(await until(() => areAllNew(before, claims.look(free)), MAX_LISTING_MS))) {
      const after = claims.look(free);
      const without = after.filter((gpu) => newPids(before, gpu).length === 0);
      fail(
        `${text}, but the driver does not list it on GPU ${listWords(without.map(label))}.`,
        'Programs that only ask the driver do not see who uses these GPUs, so use claims for all. In a container, try `--pid=host`.',
      );
    }
    return `${text}, and the driver lists it on each.`;
  } finally {
    await program.stop();
    const areBack = () => claims.look(free).every((gpu) => isBackTo(before, gpu));
    await until(areBack, TIMEOUTS.forgetting);
  }
}

/** The most that is filled: enough for what takes time by its size, and soon done. */
const MAX_FILL_BYTES = 60 * GiB;
const FILL_SHARE = 0.75;

/** Makes the checks of a GPU on which a job computes, with its memory filled: readings, who else gets it, what kill -9 leaves. */
export async function checkFullGPU(claims: Claims, runCheck: RunCheck): Promise<void> {
  const [gpu] = claims.gpus;
  const look = () => lookAtOne(gpu);
  const before = look();
  const job: { program: Subprocess | null; pid: number | null } = { program: null, pid: null };
  let kernels: string | null = null;
  try {
    await runCheck('full-gpu', async () => {
      const { totalBytes, usedBytes, freeBytes } = before.memory;
      if (totalBytes === null || usedBytes === null || freeBytes === null)
        skip('the driver does not tell how much memory is in use');
      const bytes = Math.floor(
        Math.min(MAX_FILL_BYTES, FILL_SHARE * totalBytes, freeBytes - 2 * SPARE_BYTES),
      );
      if (bytes < SPARE_BYTES) skip(`too little memory is free (${formatBytes(freeBytes)})`);
      // The shell tells the PID that the program will have.
      const words = ['sh', '-c', 'echo $$; exec "$@"', 'sh', ...cudaProgram([gpu], bytes, true)];
      const options = ['--no-wait', '--placeholder=none', '--until-input-closes'];
      const program = new Subprocess([...claims.words('run', options, [gpu]), '--', ...words]);
      job.program = program;
      const pid = await program.line(CLAIM_TIMEOUT_MS);
      if (pid === null) return claims.explainRefusal('A claim is refused', undefined, [gpu]);
      const began = now();
      const line = await program.line(CLAIM_TIMEOUT_MS);
      if (!line?.startsWith('ready'))
        fail(`A job that takes ${formatBytes(bytes)} fails: ${line ?? 'no answer'}.`, SEE_KERNEL);
      const tookMs = now() - began;
      kernels = await program.line(CLAIM_TIMEOUT_MS);
      job.pid = Number(pid);
      return checkFilled(claims, { before, look, pid: job.pid, bytes, tookMs });
    });
    const whileItRuns = (pid: number | null) => pid ?? skip('no job has filled the memory (see full-gpu)');
    await runCheck('full-load', () => {
      const pid = whileItRuns(job.pid);
      if (kernels !== 'computing') skip(`CUDA can't run a kernel: ${whyIdle(kernels)}`);
      return checkReadings(claims, look, pid, 'A job that has filled the memory computes');
    });
    await runCheck('full-killed', () => {
      const pid = whileItRuns(job.pid);
      return checkFullKilled(claims, before, look, { pid, computes: kernels === 'computing' });
    });
  } finally {
    await job.program?.stop();
  }
}

interface Filled {
  before: GPU;
  look: () => GPU;
  pid: number;
  bytes: number;
  tookMs: number;
}

async function checkFilled(claims: Claims, { before, look, pid, bytes, tookMs }: Filled): Promise<string> {
  const text = `A job fills ${formatBytes(bytes)} of GPU ${label(before)} in ${milliseconds(tookMs)}`;
  const rise = () => (look().memory.usedBytes ?? 0) - (before.memory.usedBytes ?? 0);
  if (!(await until(() => rise() >= bytes, MAX_LISTING_MS)))
    fail(`${text}, but the driver counts ${formatBytes(Math.max(0, rise()))} more in use than before.`);
  const entry = look().processes?.find((process) => process.pid === pid);
  const isOwn = entry !== undefined && !hasPidNamespace();
  if (isOwn && entry.usedBytes !== null && entry.usedBytes < bytes)
    fail(`${text}, but the driver lists ${formatBytes(entry.usedBytes)} as the memory of its process.`);
  const [state] = await claims.states([before]);
  if (state?.state !== 'leased') fail(`${text}, but \`gpu-owner status\` calls the GPU ${state?.state}.`);
  return `${await checkRefusal(claims, before, `${text}; ${formatBytes(rise())} more are in use`)}.`;
}

/** Remains of a process with much memory are gone before the next claim gets its GPU. */
async function checkFullKilled(
  claims: Claims,
  before: GPU,
  look: () => GPU,
  { pid, computes }: { pid: number; computes: boolean },
): Promise<string> {
  const seconds = Math.ceil(TIMEOUTS.forgetting / 1_000);
  const began = now();
  process.kill(pid, 'SIGKILL');
  const next = runProgram(
    [...claims.words('run', [`--wait=${seconds}s`, '--placeholder=none'], [before]), '--', 'true'],
    CLAIM_TIMEOUT_MS,
  ).then((ended) => ({ ...ended, tookMs: now() - began, left: look() }));
  let listedMs: number | null = null;
  let memoryMs: number | null = null;
  await until(() => {
    const after = look();
    if (newPids([before], after).length === 0) listedMs ??= now() - began;
    if (isBackTo([before], after)) memoryMs ??= now() - began;
    return listedMs !== null && memoryMs !== null;
  }, TIMEOUTS.forgetting);
  const { code, tookMs, left } = await next;
  const at = (time: number | null) =>
    time === null ? `not within ${milliseconds(TIMEOUTS.forgetting)}` : `after ${milliseconds(time)}`;
  const text = `After kill -9 of a job that has filled the memory${computes ? ', and computes' : ''}, the driver stops listing it ${at(listedMs)}, and its memory is free ${at(memoryMs)}`;
  if (code === 75) {
    await claims.explainRefusal(`${text}; the next claim is refused for ${seconds} s`, AFTER_CRASHES, [
      before,
    ]);
  }
  if (code !== 0) fail(`${text}; the next command fails with exit code ${code}.`);
  const { maxUsedMemory, allowProcesses } = claims.options;
  if (maxUsedMemory === undefined && !allowProcesses && !isBackTo([before], left))
    fail(
      `${text}; the next claim gets the GPU while ${formatBytes(left.memory.usedBytes)} are still in use.`,
    );
  return `${text}; the next command has run ${milliseconds(tookMs)} later.`;
}

/** Why a program doesn't compute, from its line 'idle CODE STAGE'. */
function whyIdle(line: string | null): string {
  const [, code, stage = ''] = /^idle (\d+) (\S+)$/.exec(line ?? '') ?? [];
  return code === undefined
    ? (line ?? 'no answer')
    : describeFailure({ code: Number(code), stage }, undefined);
}
