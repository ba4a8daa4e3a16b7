import { label } from '../gpus/index.ts';
import { listWords } from '../platform/index.ts';
import { fail } from './check.ts';
import { type Context, cudaList } from './part.ts';
import { runProgram } from './program.ts';

/** Makes the checks that are made under one claim. This process is its command. */
export async function checkInside(context: Context): Promise<void> {
  await context.examine('cuda-devices', () => checkCudaDevices(context));
}

/** A command sees exactly the claimed GPUs, in their order. */
async function checkCudaDevices({ gpus }: Context): Promise<string> {
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

/** What CUDA shows to a program: the digits of UUIDs, in CUDA's order. */
async function cudaDevices(words: readonly string[]): Promise<string[]> {
  const { code, signal, stdout, stderr } = await runProgram(words, 50_000);
  if (code !== 0) {
    fail(
      `CUDA does not start: ${stdout.trim() || stderr.trim() || `exit code ${signal ?? code}`}.`,
      'Run `gpu-owner doctor`: it looks for the CUDA library.',
    );
  }
  return stdout.split('\n').filter(Boolean).map(digitsOf);
}

/** 'GPU-8-4-4-4-12' without the prefix, which CUDA doesn't know; older drivers call an instance 'MIG-GPU-…/gi/ci'. */
function digitsOf(uuid: string): string {
  return uuid.replace(/^MIG-GPU-|^GPU-|^MIG-/, '').replace(/\/.*/, '');
}
