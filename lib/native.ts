import { closeSync, existsSync, openSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { errorCode, errorMessage, GPUOwnerError, ifPossible } from './errors.ts';

/** A place where a driver library was looked for. */
export interface LibraryAttempt {
  path: string;
  error: string;
}

export interface DriverFailure {
  stage: 'load' | 'symbol' | 'init' | 'count' | 'not-responding' | 'no-thread' | 'interrupted';
  code: number;
  text: string;
  path: string;
  missing: string;
  attempts: LibraryAttempt[];
}

export interface DriverDescription {
  uuid: string;
  name: string;
  pciBusId: string;
  /** Whether the driver kept the GPU awake when it was attached; null: it doesn't tell. */
  persistence: boolean | null;
  instances: { uuid: string; name: string }[];
}

/** How the GPUs are connected, as the driver tells it. -1: unknown. */
export interface DriverTopology {
  /** Per GPU: ranges of the processors and NUMA nodes near it (first, last, first, last, …), and its NVLinks. */
  places: { cpus: number[]; nodes: number[]; active: number; inactive: number }[];
  /** For each pair (0, 1), (0, 2), …, (1, 2), …: NVML's level, active NVLinks, and 1 where these lead to switches. */
  links: number[];
}

/** A driver library as it was loaded. */
interface LoadedLibrary {
  /** The file, '' where there is none. */
  path: string;
  /** A symbol that it lacks though all of its kind have it, or ''. */
  missing: string;
  /** Version of CUDA: 1000 * major + 10 * minor, 0 where it doesn't tell. */
  version: number;
  attempts: LibraryAttempt[];
}

export interface PlaceholderFailure {
  /** CUDA's; 0: none. */
  code: number;
  stage: string;
  uuid: string;
  text: string;
}

/** How locks are named to the addon: flock has no range. */
export const FLOCK = 0;
export const OFD = 1;
export const SHARED = 0;
export const EXCLUSIVE = 1;

type LockArguments = [descriptor: number, kind: number, mode: number, start: number, length: number];

export interface NativeWait {
  /** Ends the wait; its callback still comes, with ECANCELED. Waits for the wait's thread, some 100 us. */
  cancel(): void;
  /** Begins that and doesn't wait; `cancel` must follow. */
  beginCancel(): void;
}

export interface NativeHeartbeat {
  /**
   * Tells once of a heartbeat at one of the offsets that stops, of a lease that isn't held, or of bookings that changed after a time;
   * closes the descriptors.
   */
  watch(offsets: readonly number[], leases: readonly number[], quiet: number, bookings: number): void;
  end(): void;
}

/** `name` is always that of an entry of the directory itself. */
export interface NativeDirectory {
  error(): number;
  descriptor(): number;
  openShared(name: string, size: number, mode: number): number;
  /** Whatever names and mode a regular file has: for looks only. */
  openForProbe(name: string): number;
  /** For a shared lock, under the rules of `openShared`. */
  openToShare(name: string): number;
  /** For reading, to lock its bytes in shared mode. */
  openItself(): number;
  /** The same for probes: it stays open as long as this object. */
  itself(): number;
  create(name: string, bytes: Uint8Array, mode: number, locked: boolean): number;
  remove(name: string, descriptor: number): number;
  access(name: string, mode: number): number;
  names(): string[];
}

/** The addon's functions, thin over the C++ core. Each is described where it is defined, in native/bindings. */
interface Native {
  driverOpen(path: string): DriverFailure | undefined;
  /** undefined: a signal ended the wait. */
  driverSnapshot(asked?: readonly number[]): Float64Array | undefined;
  driverHasCallOut(): boolean;
  driverSnapshotAsync(done: (numbers: Float64Array) => void, asked?: readonly number[]): void;
  driverLibrary(): { path: string; version: string };
  driverDescribe(): DriverDescription[];
  /** undefined: it doesn't answer. Blocks. */
  driverTopology(): DriverTopology | undefined;
  driverCodeText(code: number): string;
  /** Snapshots have the energy counters from now on, of all GPUs or of those that are asked for by index. */
  driverReadEnergy(ofAll: boolean): void;
  /** Whether they have each process's share of the multiprocessors from now on. */
  driverReadProcessUse(on: boolean): void;
  /** In mJ; NaN: the driver doesn't tell. */
  driverEnergy(uuid: string): number;

  cudaState(path: string): 'not-loaded' | 'loaded' | 'initialized';
  cudaLibrary(path: string): LoadedLibrary;
  cudaTake(path: string, uuids: readonly string[], bytes: number): number | PlaceholderFailure;
  cudaHidden(placeholder: number): number;
  cudaHasCallOut(): boolean;
  cudaRelease(placeholder: number): void;

  lockTry(...lock: LockArguments): number;
  lockProbe(...lock: LockArguments): number;
  lockHolder(...lock: LockArguments): number;
  lockAbandonAll(): void;
  /** @returns the lowest of the bytes that the descriptor has locked now, or -errno; -EAGAIN: too few are free */
  unitsTake(descriptor: number, start: number, length: number, wanted: number): number;
  /** Start and length of each lock of others in the range; null: more than shares make. */
  unitsTaken(descriptor: number, start: number, length: number): number[] | null;
  lockWaitSync(...lock: [...LockArguments, milliseconds: number]): number;
  Wait: new (...lock: [...LockArguments, done: (error: number) => void]) => NativeWait;
  Directory: new (path: string, mode?: number) => NativeDirectory;
  /** Whatever names and mode a regular file has: for looks only. */
  fileOpenForProbe(path: string): number;
  /** For what worker threads may open, too: in them, `closeSync` warns of descriptors that aren't from `openSync`. */
  fileClose(descriptor: number): void;
  fileIsNamed(descriptor: number, path: string): boolean;
  /** The offset of the first byte from there on that is not in a hole, or -errno. Moves where the descriptor reads next. */
  fileNextData(descriptor: number, offset: number): number;
  fileSystemType(path: string): number;
  fileStatus(file: string | number, follow: boolean, numbers: Float64Array): number;
  fileText(path: string): string | null;
  fileLink(path: string): string | null;
  /** The offset at which the bytes stand now, or -errno. */
  fileAppend(descriptor: number, bytes: Uint8Array): number;
  fileWriteBlock(descriptor: number, bytes: Uint8Array, offset?: number): number;
  queueJoin(descriptor: number): number;
  /** null: too many to be those of waiters. */
  queueSlots(descriptor: number, from: number, to: number): number[] | null;
  queueEndStart(descriptor: number): void;
  queueIsAlive(descriptor: number, offset: number, timeout: number): boolean;
  Heartbeat: new (
    descriptor: number,
    offset: number,
    period: number,
    timeout: number,
    told: (changed: boolean) => void,
  ) => NativeHeartbeat;

  processExec(
    path: string,
    args: readonly string[],
    own: number,
    inherited: readonly number[],
    dropped: number,
  ): number;
  /** As processExec, for a process with a call that is stuck in the kernel: it ends when the program has ended. */
  processExecInChild(
    path: string,
    args: readonly string[],
    own: number,
    inherited: readonly number[],
    dropped: number,
  ): number;
  processInheritable(descriptor: number): number;
  /** 0 or -errno */
  processCloseOnExec(descriptor: number): number;
  processSpawn(
    path: string,
    args: readonly string[],
    environment?: readonly string[],
  ): { error: number; pid: number; input: number; output: number };
  processStart(
    path: string,
    args: readonly string[],
    changes: readonly string[],
    dropped: number,
    output: number,
    first: number,
    descriptors: readonly number[],
  ): { error: number; pid: number; control: number };
  /** Starts a program in a session of its own; `more` arguments and the environment are bytes, each entry ended by a NUL. */
  processStartDetached(
    path: string,
    args: readonly string[],
    more: Uint8Array,
    environment: Uint8Array,
    output: number,
    first: number,
    descriptors: readonly number[],
  ): { error: number; pid: number };
  /**
   * Runs a program with the standard output and error of this process, and nothing else of it; blocks until its end. `more` arguments and the
   * environment are as above. @returns its exit code, or -errno
   */
  processRun(
    path: string,
    args: readonly string[],
    more: Uint8Array,
    environment: Uint8Array,
    first: number,
    descriptors: readonly number[],
  ): number;
  /** Leaves session and standard streams of the process that started this one, and closes `foreign`. @returns 0 or errno */
  processDetach(output: number, kept: readonly number[], foreign: readonly number[]): number;
  /**
   * Queues a signal with a value for a process that has exactly this byte of this file locked (OFD, for writing), and for no other.
   * Signal 0 only proves. @returns 0 or -errno; -ESRCH: there is no such process, or it has no such lock
   */
  processSignal(
    pid: number,
    device: number,
    inode: number,
    byte: number,
    signal: number,
    value: number,
  ): number;
  /** A descriptor that means this process, and no later one of its number; -errno: -ESRCH where there is none. */
  processHold(pid: number): number;
  /** Signals the process of such a descriptor; signal 0 only tells whether there is one. @returns 0 or -errno */
  processSignalHeld(descriptor: number, signal: number): number;
  /** The uid of the user who made the outermost user namespace around a process that isn't this one's, or -errno; -ENOENT: none. */
  processNamespaceMaker(pid: number): number;
  processCollect(pid: number): boolean;
  processAdopt(): boolean;
  processReadLine(descriptor: number, milliseconds: number): string;
  processWatchSignals(): void;
  processUnwatchSignals(): void;
  processSleep(milliseconds: number): boolean;
  processBootMilliseconds(): number;
  processSecret(): string;
  processSecretNumber(secret: string): number;
  processColumns(descriptor: number): number;
  /** Has SIGHUP come when the parent of this process ends, also after it has become another program. */
  processHangUpWithParent(): void;
  processIsTerminal(descriptor: number): boolean;
  /** A variable as libraries in this process, and programs that it becomes, see it. */
  processVariable(name: string): string | null;
  processSetVariable(name: string, value: string | null): number;
}

/** The directory of this package. */
export const packageRoot = dirname(import.meta.dirname);
// In bundles, the build puts their own `require` here: loading node:module would cost its start a third of a millisecond.
const packageRequire =
  (import.meta as { require?: NodeJS.Require }).require ??
  process.getBuiltinModule('node:module').createRequire(join(packageRoot, 'package.json'));

let loaded: { addon: Native; directory: string } | undefined;

/** Loads the addon on first use; this is the only file that does. @throws ERR_UNSUPPORTED_PLATFORM elsewhere than on Linux */
function load() {
  if (loaded === undefined) {
    if (process.platform !== 'linux') {
      throw new GPUOwnerError(
        'ERR_UNSUPPORTED_PLATFORM',
        `gpu-owner works on Linux (x64 and arm64; WSL 2 and containers included), not on ${process.platform}.`,
      );
    }
    const path = addonPath();
    try {
      // Does what require() would do, without looking for packages on the way, which costs the start of the command 0.4 ms.
      const module = { exports: {} };
      process.dlopen(module, path);
      const addon = Object.setPrototypeOf(module.exports, refuseMissing(path)) as Native;
      const { driverHasCallOut, cudaHasCallOut, lockAbandonAll } = addon;
      loaded = { addon, directory: dirname(path) };
      process.on('exit', () => {
        // A thread that is stuck in the kernel would keep what is locked from being free.
        if (driverHasCallOut() || cudaHasCallOut()) lockAbandonAll();
      });
    } catch (cause) {
      if (cause instanceof GPUOwnerError) throw cause;
      if (errorCode(cause) === 'ERR_DLOPEN_DISABLED') {
        throw new GPUOwnerError(
          'ERR_UNSUPPORTED_PLATFORM',
          'gpu-owner needs its native addon, which Node.js may not load here: start Node.js with --allow-addons.',
          { cause },
        );
      }
      throw new GPUOwnerError(
        'ERR_UNSUPPORTED_PLATFORM',
        `the native addon at ${path} can't be loaded: ${errorMessage(cause)}. ${remedyFor(errorMessage(cause))}`,
        { cause },
      );
    }
  }
  return loaded;
}

/** @param problem as the linker puts it */
function remedyFor(problem: string): string {
  return /failed to map segment/.test(problem)
    ? 'Its file system is probably mounted noexec, so that nothing on it may run: mount it with exec, or install gpu-owner elsewhere.'
    : 'Install gpu-owner again; in a clone, run `npm run install`.';
}

/** The prototype of the addon: it is asked only for functions that the addon lacks, so it costs the others nothing. */
function refuseMissing(path: string): object {
  return new Proxy(Object.prototype, {
    get(target, name, receiver) {
      if (typeof name === 'symbol' || name in target || name === 'then')
        return Reflect.get(target, name, receiver);
      throw new GPUOwnerError(
        'ERR_UNSUPPORTED_PLATFORM',
        `the native addon at ${path} is from another version of gpu-owner: it has no ${name}(). ` +
          'Install gpu-owner again; in a clone, run `npm run install`.',
      );
    },
  });
}

function addonPath(): string {
  // A build made elsewhere, with sanitizers for instance.
  const build = process.env.GPU_OWNER_BUILD;
  if (build) return join(build, 'gpu_owner.node');
  // Looked for first to spare the start of the command the 2 ms that node-gyp-build takes to find the same.
  const compiled = join(packageRoot, 'build/Release/gpu_owner.node');
  if (existsSync(compiled)) return compiled;
  try {
    return (packageRequire('node-gyp-build') as { path(directory: string): string }).path(packageRoot);
  } catch (cause) {
    throw new GPUOwnerError(
      'ERR_UNSUPPORTED_PLATFORM',
      `there is no native addon for this system (${process.platform}-${process.arch}). Releases have one for Linux with glibc 2.28 ` +
        'or newer, on x64 and arm64. For another one, Alpine for instance, build gpu-owner from its sources: `npm ci` in a clone.',
      { cause },
    );
  }
}

export function native(): Native {
  return load().addon;
}

/** As {@link native} for what can also be had without; null: no addon works here, for any reason. */
export function nativeOrNull(): Native | null {
  try {
    return native();
  } catch {
    return null;
  }
}

/** Where the programs and libraries are that are built along with the addon. */
export function nativeFile(name: string): string {
  return `${load().directory}/${name}`;
}

const kept = new Map<string, string>();

/**
 * Opens programs that are built along with the addon, for processes that will start them much later: the package may have been
 * upgraded or removed by then, and another version's would be told what it doesn't understand.
 */
export function keepPrograms(...names: readonly string[]): void {
  for (const name of names) {
    if (kept.has(name)) continue;
    const descriptor = ifPossible(() => openSync(nativeFile(name), 'r'), -1);
    if (descriptor < 0) continue; // the start of a missing program fails later, and says so
    const path = `/proc/self/fd/${descriptor}`;
    if (existsSync(path)) kept.set(name, path);
    else closeSync(descriptor);
  }
}

/** Where a program is that is built along with the addon, or the one that {@link keepPrograms} has opened. */
export function nativeProgram(name: string): string {
  return kept.get(name) ?? nativeFile(name);
}

/** errno values that the addon's functions return (the same on x86-64 and arm64 Linux). */
export const errno = {
  EPERM: 1,
  ENOENT: 2,
  ESRCH: 3,
  EINTR: 4,
  ENXIO: 6,
  E2BIG: 7,
  EAGAIN: 11,
  EACCES: 13,
  EEXIST: 17,
  ENOTDIR: 20,
  EISDIR: 21,
  EFBIG: 27,
  ELOOP: 40,
  ECANCELED: 125,
} as const;
