import { formatBytes, now, TIMEOUTS } from '../platform/index.ts';
import { CLAIM_TIMEOUT_MS, Claims } from './claims.ts';
import { type Context, cudaProgram, lookAtOne, milliseconds, until } from './context.ts';
import { isBackTo, SLACK_BYTES } from './cuda-program.ts';
import { fail, skip } from './finding.ts';
import { Subprocess } from './subprocess.ts';

const MiB = 2 ** 20;
/** A placeholder looks for its command four times a second. */
const MAX_LEAVING_MS = 5_000;
/** CUDA can't give away the last of the memory: it comes in pieces. */
const SPARE_BYTES = 512 * MiB;

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
