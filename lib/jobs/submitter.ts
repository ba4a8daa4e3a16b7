// The process that was started as `submit`: it waits until its child, the job's first process, has announced the job.
import { closeSync, fstatSync, writeSync } from 'node:fs';
import { BEFORE_EXEC } from '../bundle.ts';
import { GPUOwnerError } from '../errors.ts';
import { native, nativeFile } from '../native.ts';
import { setVariables, systemError } from '../platform/index.ts';
import { INHERITED, KEEPER, parseInherited } from './inherited.ts';

/** Names the variable with the descriptor of the pipe to the submitter. See native/keeper/submit.h. */
export const SUBMITTER = 'GPU_OWNER_SUBMITTER';
/** Names the variable that says how a caller wants to read errors. */
export const ERRORS = 'GPU_OWNER_ERRORS';

/** The parent of this process, which ends with success once it is told, and otherwise as this process ends. */
export class Submitter {
  readonly #descriptor: number;

  private constructor(descriptor: number) {
    this.#descriptor = descriptor;
  }

  /** null: this process has none, or the job was announced before. */
  static find(): Submitter | null {
    if (process.env[SUBMITTER] === undefined) return null;
    const descriptor = Number(process.env[SUBMITTER]);
    setVariables({ [SUBMITTER]: undefined });
    try {
      if (!Number.isSafeInteger(descriptor) || !fstatSync(descriptor).isFIFO()) return null;
    } catch {
      return null;
    }
    return native().processCloseOnExec(descriptor) === 0 ? new Submitter(descriptor) : null;
  }

  /** Lets it end: the job goes on without it. */
  release(): void {
    try {
      writeSync(this.#descriptor, '\n');
    } catch {
      // The submitter was killed.
    }
    closeSync(this.#descriptor);
  }

  /** Leaves it to the program that this process becomes. @returns the descriptor to be inherited */
  handOn(): number {
    setVariables({ [SUBMITTER]: String(this.#descriptor) });
    return this.#descriptor;
  }
}

/**
 * Turns this process into a submitter that starts this program anew as its child: the launcher does so itself, and other callers start
 * Node.js. @throws ERR_INTERNAL if that isn't possible
 */
export function becomeSubmitter(): never {
  process.emit(BEFORE_EXEC as 'exit', 0);
  const program = nativeFile(KEEPER);
  const words = [KEEPER, 'submit', '--', process.execPath, ...process.execArgv];
  const { descriptors } = parseInherited(process.env[INHERITED]);
  const error = native().processExec(program, words, process.argv.length - 1, descriptors, 0);
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `${program} can't be started: ${systemError(-error)}. Is the package complete?`,
  );
}
