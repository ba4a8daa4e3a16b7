import { closeSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import { label, SHOWS_ONE_INSTANCE } from '../gpus/instances.ts';
import type { GPU } from '../gpus/types.ts';
import { native, nativeFile } from '../native.ts';
import { driverLibraries } from '../simulation.ts';
import { systemError } from '../system-errors.ts';
import { warnOnce } from '../warnings.ts';

/** How long CUDA may take to start before it is given up on, in ms. Some seconds on a machine of many GPUs are normal. */
const PATIENCE = 60_000;
/** With 'auto', how long a command may take to get to its GPUs, in seconds. */
const AUTO_SECONDS = 60;

/**
 * A process that keeps GPUs visibly taken for a command which hasn't reached them yet. It ends when its input is closed;
 * with 'auto' also when the command's processes show on the GPUs, or after 60 s.
 */
export class PlaceholderProcess {
  readonly pid: number;
  /** The end of its standard input that keeps it going. */
  readonly input: number;

  private constructor(pid: number, input: number) {
    this.pid = pid;
    this.input = input;
  }

  /** CUDA_VISIBLE_DEVICES of this process must show the GPUs. @throws ERR_PLACEHOLDER */
  static start(gpus: readonly GPU[], until: 'auto' | 'keep'): PlaceholderProcess {
    const path = nativeFile('gpu-owner-placeholder');
    const { nvml, cuda } = driverLibraries();
    const args = [
      'gpu-owner-placeholder',
      ...(nvml ? ['--nvml', nvml] : []),
      ...(cuda ? ['--cuda', cuda] : []),
      '--seconds',
      String(until === 'auto' ? AUTO_SECONDS : 0),
      ...gpus.flatMap(({ uuid }) => ['--uuid', uuid]),
    ];
    const { error, pid, input, output } = native().processSpawn(path, args);
    if (error !== 0) {
      throw new GPUOwnerError(
        'ERR_PLACEHOLDER',
        `${path} can't be started: ${systemError(error)}. Is the package complete?`,
      );
    }
    const started = new PlaceholderProcess(pid, input);
    try {
      const line = native().processReadLine(output, PATIENCE);
      if (!/^ready( \d+)?$/.test(line)) throw failure(line, gpus);
      if (line !== 'ready') warnOnce(SHOWS_ONE_INSTANCE);
      return started;
    } catch (error) {
      started.end();
      process.kill(pid, 'SIGKILL'); // it may hang in the driver; not reaped yet, so the number is still its own
      throw error;
    } finally {
      closeSync(output);
    }
  }

  end(): void {
    closeSync(this.input);
  }
}

function failure(line: string, gpus: readonly GPU[]): GPUOwnerError {
  const [, code, stage, uuid, text] = /^failed (\d+) (\S+) (\S+) (.*)$/.exec(line) ?? [];
  const gpu = gpus.find((one) => one.uuid === uuid);
  const where = gpu === undefined ? '' : ` on GPU ${label(gpu)}`;
  const what =
    stage === 'load'
      ? `the CUDA driver library can't be used: ${text}`
      : `${text} (${stage}, CUDA code ${code})`;
  return new GPUOwnerError(
    'ERR_PLACEHOLDER',
    `the placeholder${where} failed: ${line === '' ? 'CUDA did not start' : what}. ` +
      'With `--placeholder none` the lease still holds, but tools that only look at the driver do not see it.',
    {
      gpus:
        gpu === undefined
          ? []
          : [{ index: gpu.index, instance: gpu.instance, uuid: gpu.uuid, reason: text ?? '' }],
    },
  );
}
