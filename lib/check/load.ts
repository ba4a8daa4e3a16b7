import { describeFailure } from '../claims/index.ts';
import { hasPidNamespace, label } from '../gpus/index.ts';
import { formatBytes, now, TIMEOUTS } from '../platform/index.ts';
import { CLAIM_TIMEOUT_MS, Claims, checkRefusal } from './claims.ts';
import { type Context, cudaProgram, lookAtOne, milliseconds, until } from './context.ts';
import { isBackTo, newPids, SLACK_BYTES } from './cuda-program.ts';
import { AFTER_CRASHES, fail, skip } from './finding.ts';
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
export async function checkPlaceholderMemory(context: Context): Promise<string> {
  const claims = new Claims(context);
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

/** The most that is filled: enough for what takes time by its size, and soon done. */
const MAX_FILL_BYTES = 60 * GiB;
const FILL_SHARE = 0.75;

const WITHOUT_JOB = 'no job has filled the memory (see full-gpu)';

/** Starts a job that fills a GPU's memory and computes for the checks that follow: all of it is counted, and no other claim gets it. */
export async function checkFullGPU(context: Context): Promise<string> {
  const claims = new Claims(context);
  const [gpu] = claims.gpus;
  const look = () => lookAtOne(gpu);
  const before = look();
  const { totalBytes, usedBytes, freeBytes } = before.memory;
  if (totalBytes === null || usedBytes === null || freeBytes === null)
    skip('the driver does not tell how much memory is in use');
  const bytes = Math.floor(Math.min(MAX_FILL_BYTES, FILL_SHARE * totalBytes, freeBytes - 2 * SPARE_BYTES));
  if (bytes < SPARE_BYTES) skip(`too little memory is free (${formatBytes(freeBytes)})`);
  // The shell tells the PID that the program will have.
  const words = ['sh', '-c', 'echo $$; exec "$@"', 'sh', ...cudaProgram([gpu], bytes, true)];
  const options = ['--no-wait', '--placeholder=none', '--until-input-closes'];
  const program = new Subprocess([...claims.words('run', options, [gpu]), '--', ...words]);
  const pid = await program.line(CLAIM_TIMEOUT_MS);
  if (pid === null) return claims.explainRefusal('A claim is refused', undefined, [gpu]);
  const began = now();
  const line = await program.line(CLAIM_TIMEOUT_MS);
  if (!line?.startsWith('ready'))
    fail(`A job that takes ${formatBytes(bytes)} fails: ${line ?? 'no answer'}.`, SEE_KERNEL);
  const text = `A job fills ${formatBytes(bytes)} of GPU ${label(gpu)} in ${milliseconds(now() - began)}`;
  const state = await program.line(CLAIM_TIMEOUT_MS);
  context.running = { program, pid: Number(pid), before: [before], state };
  const rise = () => (look().memory.usedBytes ?? 0) - usedBytes;
  if (!(await until(() => rise() >= bytes, MAX_LISTING_MS)))
    fail(`${text}, but the driver counts ${formatBytes(Math.max(0, rise()))} more in use than before.`);
  const entry = look().processes?.find((process) => process.pid === Number(pid));
  const isOwn = entry !== undefined && !hasPidNamespace();
  if (isOwn && entry.usedBytes !== null && entry.usedBytes < bytes)
    fail(`${text}, but the driver lists ${formatBytes(entry.usedBytes)} as the memory of its process.`);
  const [status] = await claims.states([gpu]);
  if (status?.state !== 'leased') fail(`${text}, but \`gpu-owner status\` calls the GPU ${status?.state}.`);
  return `${await checkRefusal(claims, [gpu], `${text}; ${formatBytes(rise())} more are in use`)}.`;
}

/** While that job computes, readings tell it. */
export async function checkFullLoad({ gpus: [gpu], running }: Context): Promise<string> {
  if (running === null) skip(WITHOUT_JOB);
  if (running.state !== 'computing') skip(`CUDA can't run a kernel: ${whyIdle(running.state)}`);
  const text = 'A job that has filled the memory computes';
  return checkReadings(gpu, () => lookAtOne(gpu), running.pid, text);
}

/** Remains of that job are gone before the next claim gets its GPU. */
export async function checkFullKilled(context: Context): Promise<string> {
  const { running } = context;
  if (running === null) skip(WITHOUT_JOB);
  const claims = new Claims(context);
  const [gpu] = claims.gpus;
  const seconds = Math.ceil(TIMEOUTS.forgetting / 1_000);
  const began = now();
  process.kill(running.pid, 'SIGKILL');
  context.running = null;
  const next = runProgram(
    [...claims.words('run', [`--wait=${seconds}s`, '--placeholder=none'], [gpu]), '--', 'true'],
    CLAIM_TIMEOUT_MS,
  ).then((ended) => ({ ...ended, tookMs: now() - began, left: lookAtOne(gpu) }));
  let listedMs: number | null = null;
  let memoryMs: number | null = null;
  await until(() => {
    const after = lookAtOne(gpu);
    if (newPids(running.before, after).length === 0) listedMs ??= now() - began;
    if (isBackTo(running.before, after)) memoryMs ??= now() - began;
    return listedMs !== null && memoryMs !== null;
  }, TIMEOUTS.forgetting);
  const { code, tookMs, left } = await next;
  const at = (time: number | null) =>
    time === null ? `not within ${milliseconds(TIMEOUTS.forgetting)}` : `after ${milliseconds(time)}`;
  const text = `After kill -9 of a job that has filled the memory${running.state === 'computing' ? ', and computes' : ''}, the driver stops listing it ${at(listedMs)}, and its memory is free ${at(memoryMs)}`;
  if (code === 75)
    await claims.explainRefusal(`${text}; the next claim is refused for ${seconds} s`, AFTER_CRASHES, [gpu]);
  if (code !== 0) fail(`${text}; the next command fails with exit code ${code}.`);
  const { maxUsedMemory, allowProcesses } = claims.options;
  if (maxUsedMemory === undefined && !allowProcesses && !isBackTo(running.before, left))
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
