import { GPUOwnerError } from '../errors.ts';
import { native, nativeFile } from '../native.ts';
import { systemError } from '../system-errors.ts';

/** Becomes the tool that comes with the simulated driver: it explains itself, and signals reach it. */
export async function simulate(args: readonly string[]): Promise<void> {
  const path = nativeFile('gpu-owner-simulator');
  // Other commands call it --simulate.
  const words = args.map((arg) => arg.replace(/^--simulate(?==|$)/, '--machine'));
  const error = native().processExec(path, ['gpu-owner simulate', ...words], 0, []);
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `${path} can't be started: ${systemError(-error)}. Is the package complete?`,
  );
}
