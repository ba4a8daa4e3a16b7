import type { ClaimOptions, GPUStatus } from '../claims/index.ts';
import { type GPU, label } from '../gpus/index.ts';
import { now } from '../platform/index.ts';
import { getGPUs } from '../status/index.ts';
import { fail, SEE_STATUS, skip } from './check.ts';
import { type Context, lookAt, milliseconds } from './context.ts';
import { listingOf } from './cuda-program.ts';
import { runProgram, Subprocess } from './subprocess.ts';

/** With the start of CUDA, which takes seconds on a machine of many GPUs. */
export const CLAIM_TIMEOUT_MS = 60_000;

/** Claims of the same GPUs, again and again, by commands of their own. */
export class Claims {
  readonly gpus: Context['gpus'];
  readonly options: ClaimOptions;
  readonly #command: readonly string[];
  readonly #claim: readonly string[];

  constructor({ command, claim, gpus }: Context, options: ClaimOptions) {
    this.#command = command;
    this.#claim = claim.filter((word) => !word.startsWith('--devices'));
    this.gpus = gpus;
    this.options = options;
  }

  /** The words of a command that claims these GPUs, all of them. */
  words(
    name: 'run' | 'hold',
    more: readonly string[] = ['--no-wait'],
    gpus: readonly GPU[] = this.gpus,
  ): string[] {
    const which = [`--gpus=${gpus.length}`, `--devices=${gpus.map(({ uuid }) => uuid).join()}`];
    return [...this.#command, name, ...which, ...more, ...this.#claim];
  }

  owner(): string[] {
    const on = this.gpus.map(({ uuid }) => uuid).join();
    return [...this.#command, 'selftest', '--part=owner', `--on=${on}`, ...this.#claim];
  }

  look(gpus: readonly GPU[] = this.gpus): GPU[] {
    return lookAt(gpus);
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

/** A second claim of a claimed GPU is refused. @param what the finding so far, without a full stop @returns it, and this */
export async function checkRefusal(claims: Claims, gpu: GPU, what: string): Promise<string> {
  const began = now();
  const { code } = await runProgram(
    [...claims.words('run', undefined, [gpu]), '--', 'true'],
    CLAIM_TIMEOUT_MS,
  );
  const took = now() - began;
  if (code === 0)
    fail(`${what}, and a second claim gets the GPU as well.`, 'Run `gpu-owner doctor`: locks do not work.');
  if (code !== 75) fail(`${what}, and a second claim fails with exit code ${code} instead of 75.`);
  return `${what}; a second claim is refused, in ${milliseconds(took)}`;
}
