/** The stable codes of {@link GPUOwnerError}: programs decide by these, people read the message. */
export const ErrorCode = {
  /** No NVIDIA driver library was found. Install the driver (or pass it into the container), or simulate GPUs. */
  ERR_NO_DRIVER: 'ERR_NO_DRIVER',
  /** The driver is there but failed as a whole (not loaded, versions that don't match, …). See the message; `nvidia-smi` usually says the same. */
  ERR_DRIVER: 'ERR_DRIVER',
  /** Fewer GPUs than asked for are free. `gpus` has the reason for each; wait with `acquire()`, ask for fewer or loosen the criteria. */
  ERR_GPU_UNAVAILABLE: 'ERR_GPU_UNAVAILABLE',
  /** Waiting took longer than `maxWait`. `gpus` says what was in the way; wait longer. */
  ERR_TIMEOUT: 'ERR_TIMEOUT',
  /** The `AbortSignal` that was given ended the wait; nothing is held. */
  ERR_ABORTED: 'ERR_ABORTED',
  /** CUDA was initialised in this process before, or bound to other GPUs: later changes can't reach it. Claim before anything initialises CUDA. */
  ERR_CUDA_INITIALIZED: 'ERR_CUDA_INITIALIZED',
  /** The CUDA context that shows others that the GPU is taken couldn't be made. Free memory on the GPU, or claim with `placeholder: 'none'`. */
  ERR_PLACEHOLDER: 'ERR_PLACEHOLDER',
  /** The lock directory can't be used (read-only, full, on a network file system, a symbolic link, …). Set `GPU_OWNER_LOCK_DIR` to one that can. */
  ERR_LOCK_DIRECTORY: 'ERR_LOCK_DIRECTORY',
  /** The machine's configuration doesn't permit that to this user. The message says who may. */
  ERR_NOT_PERMITTED: 'ERR_NOT_PERMITTED',
  /** An option, a count or a selector is not valid. The message names it, the value, and what is right. */
  ERR_INVALID_ARGUMENT: 'ERR_INVALID_ARGUMENT',
  /** A configuration file can't be read or has a mistake. The message names the file, the line and the key. */
  ERR_CONFIGURATION: 'ERR_CONFIGURATION',
  /** The queue of an experiment can't be used (no permission, damaged, on a network file system, made by a newer version, …). The message names it and the remedy. */
  ERR_QUEUE: 'ERR_QUEUE',
  /**
   * Background jobs can't be kept (the state directory is full, read-only, another user's, …). The message names it and the
   * remedy.
   */
  ERR_JOBS: 'ERR_JOBS',
  /** GPUs can't be claimed from a worker thread: its environment isn't the process's. Claim on the main thread, before starting workers. */
  ERR_WORKER_THREAD: 'ERR_WORKER_THREAD',
  /** This operating system isn't supported; Linux is (WSL 2 and containers included). */
  ERR_UNSUPPORTED_PLATFORM: 'ERR_UNSUPPORTED_PLATFORM',
  /** This gpu-owner is in an environment that a tool deletes later (`uvx`, `pipx run`), so nothing can be claimed with it. Install it. */
  ERR_INSTALLATION: 'ERR_INSTALLATION',
  /** The operating system failed or refused what everything needs: a disk has an error or is full, a limit on open files is reached. */
  ERR_SYSTEM: 'ERR_SYSTEM',
  /** A mistake in gpu-owner itself. Please report it, with the message. */
  ERR_INTERNAL: 'ERR_INTERNAL',
} as const;

export type ErrorCode = keyof typeof ErrorCode;

/** Why one GPU couldn't be had. `uuid` is '' where the driver doesn't even tell that. */
export interface GPUReason {
  index: number;
  /** The number of a MIG instance on its GPU. */
  instance?: number | null;
  uuid: string;
  reason: string;
  /** The CUDA_VISIBLE_DEVICES that was inherited leaves it out. */
  isHidden?: boolean;
}

export interface GPUOwnerErrorOptions {
  gpus?: readonly GPUReason[] | undefined;
  cause?: unknown;
}

/** The one class of errors that gpu-owner throws; `code` tells them apart. */
export class GPUOwnerError extends Error {
  readonly code: ErrorCode;
  /** The reason for every GPU, where the error is about GPUs. */
  readonly gpus?: readonly GPUReason[];

  constructor(code: ErrorCode, message: string, options: GPUOwnerErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    if (options.gpus !== undefined) this.gpus = options.gpus;
  }
}

// On the prototype, as for built-in errors: printed errors don't list it among their data.
Object.defineProperty(GPUOwnerError.prototype, 'name', {
  value: 'GPUOwnerError',
  configurable: true,
  writable: true,
});

/** Exit codes for failures of our own: those of sysexits.h, so that they can be told from a command's. */
export const EXIT_CODES: Readonly<Record<ErrorCode, number>> = {
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

/** The end of the command with this exit code, and the error that says why. */
export class CommandEnd extends Error {
  readonly error: GPUOwnerError;
  readonly exitCode: number;

  constructor(error: GPUOwnerError, exitCode: number) {
    super(error.message, { cause: error });
    this.error = error;
    this.exitCode = exitCode;
  }
}

/** The code of an error of the system, such as `ENOENT`. */
export function errorCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error ? String(error.code) : undefined;
}

export function errorMessage(error: unknown): string {
  return asError(error).message;
}

/**
 * Whether the machine or its user has caused an error: the system has refused a call, or it is an error of ours that names its remedy. All
 * others are mistakes in gpu-owner.
 */
export function isFailure(error: unknown): boolean {
  if (error instanceof GPUOwnerError) return error.code !== 'ERR_INTERNAL';
  // The code is that of a path which no file can have.
  return error instanceof Error && ('syscall' in error || errorCode(error) === 'ERR_INVALID_ARG_VALUE');
}

/** The result of a call; `otherwise` where the call fails. Mistakes in gpu-owner are thrown. */
export function ifPossible<T, Other = T>(call: () => T, otherwise: Other): T | Other {
  try {
    return call();
  } catch (error) {
    if (!isFailure(error)) throw error;
    return otherwise;
  }
}

/** As {@link ifPossible}, for `catch` of promises. */
export function ifFailed<T>(otherwise: T): (error: unknown) => T {
  return (error) =>
    ifPossible(() => {
      throw error;
    }, otherwise);
}

/** The content of a file or directory; `otherwise` where there is none. All other failures are thrown. */
export function ifThere<T, Other = T>(read: () => T, otherwise: Other): T | Other {
  try {
    return read();
  } catch (error) {
    if (!['ENOENT', 'ENOTDIR'].includes(errorCode(error) ?? '')) throw error;
    return otherwise;
  }
}

/** A thrown error, with the fields that errors of the system have. */
export function asError(error: unknown): NodeJS.ErrnoException {
  return error instanceof Error ? error : new Error(String(error));
}
