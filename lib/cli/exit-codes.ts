import { type ErrorCode, GPUOwnerError } from '../errors.ts';

export type ExitCodes = Readonly<Record<ErrorCode, number>>;

/** Exit codes for failures of our own: those of sysexits.h, so that they can be told from a command's. */
export const EXIT_CODES: ExitCodes = {
  ERR_INVALID_ARGUMENT: 64, // EX_USAGE
  ERR_NO_DRIVER: 69, // EX_UNAVAILABLE
  ERR_DRIVER: 69,
  ERR_UNSUPPORTED_PLATFORM: 69,
  ERR_INSTALLATION: 69,
  ERR_PLACEHOLDER: 69,
  ERR_QUEUE: 69,
  ERR_INTERNAL: 70, // EX_SOFTWARE
  ERR_WORKER_THREAD: 70,
  ERR_CUDA_INITIALIZED: 70,
  ERR_SYSTEM: 71, // EX_OSERR
  ERR_LOCK_DIRECTORY: 73, // EX_CANTCREAT
  ERR_JOBS: 73,
  ERR_GPU_UNAVAILABLE: 75, // EX_TEMPFAIL: later it may work
  ERR_TIMEOUT: 75,
  ERR_NOT_PERMITTED: 77, // EX_NOPERM
  ERR_CONFIGURATION: 78, // EX_CONFIG
  ERR_ABORTED: 130,
};

/** A failure of ours with the exit code that this call has for it. */
export class CommandFailure extends Error {
  readonly error: GPUOwnerError;
  readonly exitCode: number;

  constructor(error: GPUOwnerError, exitCode: number) {
    super(error.message, { cause: error });
    this.error = error;
    this.exitCode = exitCode;
  }
}

/** The error with the exit code of its kind. A mistake of the program stays what it is. */
export function withExitCode(error: unknown, exitCodes: ExitCodes): unknown {
  return error instanceof GPUOwnerError ? new CommandFailure(error, exitCodes[error.code]) : error;
}
