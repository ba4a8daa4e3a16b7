import { driverLibraries, simulatedMachine } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { type DriverFailure, type LibraryAttempt, native, nativeFile } from '../native.ts';
import { systemError, warnOnce } from '../platform/index.ts';
import { isWSL, whichContainer } from './containers.ts';
import type { Topology } from './topology.ts';

/** The exit code of the simulator's tool when it doesn't know the machine. */
const EX_USAGE = 64;
const EMFILE = 24;

/** The remedy for a driver that starts slowly. */
export const KEEP_AWAKE =
  'To keep GPUs awake between programs, an administrator can run `nvidia-smi -pm 1`, or nvidia-persistenced.';
/** How often the driver is waited for, three seconds each time. The driver doesn't say how far its start has come. */
const START_ATTEMPTS = 10;

let ready = false;

/**
 * Opens NVML, once for the life of the process.
 *
 * @throws ERR_NO_DRIVER when there is no driver library, ERR_DRIVER when it fails, ERR_ABORTED when a signal that the
 *   program handles arrived while the driver was starting
 */
export function openDriver(): void {
  if (ready) return;
  let failed = native().driverOpen(driverLibraries().nvml);
  for (let i = 1; i < START_ATTEMPTS && failed?.stage === 'not-responding'; i++) {
    warnOnce(`the NVIDIA driver is still starting. ${KEEP_AWAKE}`);
    failed = native().driverOpen(driverLibraries().nvml);
  }
  if (failed !== undefined) throw failure(failed);
  ready = true;
}

function failure(result: DriverFailure): GPUOwnerError {
  const code = `NVML code ${result.code}`;
  switch (result.stage) {
    case 'load': {
      // glibc has no number for it.
      const { path = '' } = result.attempts.find(({ error }) => /too many open files/i.test(error)) ?? {};
      if (path !== '')
        return new GPUOwnerError(
          'ERR_DRIVER',
          `the NVIDIA driver's library ${path} can't be opened: ${systemError(EMFILE)}.`,
        );
      return new GPUOwnerError('ERR_NO_DRIVER', noDriver(result));
    }
    case 'symbol':
      return new GPUOwnerError(
        'ERR_DRIVER',
        `${result.path} lacks ${result.missing}: it is not NVIDIA's management library, or it is a stub. ` +
          'Check GPU_OWNER_NVML_LIBRARY and LD_LIBRARY_PATH.',
      );
    case 'not-responding':
      return new GPUOwnerError(
        'ERR_DRIVER',
        'the NVIDIA driver has not answered for 30 s while starting up. See `dmesg`; a GPU may have failed.',
      );
    case 'no-thread':
      return new GPUOwnerError(
        'ERR_DRIVER',
        `the NVIDIA driver can't be asked, as no thread can be started: ${systemError(result.code)}. Raise the limit, or end processes.`,
      );
    case 'interrupted':
      return interruptedError();
    default:
      return (
        simulatorFailure() ??
        new GPUOwnerError(
          'ERR_DRIVER',
          `the NVIDIA driver doesn't start: ${result.text} (${code}). ${remedy(result.code)}`,
        )
      );
  }
}

/** Why the simulated machine itself can't be used; the simulator has said more on standard error. null: it can. */
function simulatorFailure(): GPUOwnerError | null {
  const machine = simulatedMachine();
  if (machine === null) return null;
  const { spawnSync } = process.getBuiltinModule('node:child_process'); // rarely needed, so not loaded before
  const { status } = spawnSync(nativeFile('gpu-owner-simulator'), ['show', '--json'], { stdio: 'ignore' });
  if (status === 0) return null;
  return new GPUOwnerError(
    status === EX_USAGE ? 'ERR_INVALID_ARGUMENT' : 'ERR_DRIVER',
    `the simulated machine '${machine}' can't be used; the simulator says why above.`,
  );
}

/** The error for a wait that a signal ended: the program's own handler runs as soon as it gets to its event loop. */
export function interruptedError(): GPUOwnerError {
  return new GPUOwnerError('ERR_ABORTED', 'interrupted by a signal while claiming; nothing is held.');
}

function remedy(code: number): string {
  switch (code) {
    case 9:
      if (isWSL()) {
        return (
          'Under WSL 2 the driver belongs to Windows: a Linux driver that was installed in here conflicts with it. Remove that, or set ' +
          'GPU_OWNER_NVML_LIBRARY=/usr/lib/wsl/lib/libnvidia-ml.so.1.'
        );
      }
      return notLoaded(whichContainer());
    case 18:
      return 'The driver was updated under a running kernel module: reboot, or reload the module.';
    case 4:
      return 'This user may not use /dev/nvidia*: check their permissions and groups.';
    case 999:
      return whichContainer() === null
        ? '`nvidia-smi` and `dmesg` may say more.'
        : "This container has lost its devices (a reload of the host's systemd takes them away): restart it.";
    case 17:
      return 'A container or security module blocks its devices: start the container with --gpus all.';
    default:
      return '`nvidia-smi` and `dmesg` may say more.';
  }
}

/** @param container which kind this is; null: none */
export function notLoaded(container: string | null): string {
  return container === null
    ? 'Load it (`modprobe nvidia`), or install it; `nvidia-smi` should work first.'
    : `This is a container (${container}): start it with \`--gpus all\` (Podman: \`--device nvidia.com/gpu=all\`, Apptainer: \`--nv\`). ` +
        'On the host, `nvidia-smi` should work first.';
}

function noDriver(result: DriverFailure): string {
  const places = result.attempts.map((attempt) => {
    const missing = attempt.path.includes('/') ? 'no such file' : 'not in the library search path';
    return `  ${attempt.path}: ${isMissingLibrary(attempt) ? missing : attempt.error}`;
  });
  return [
    'no NVIDIA driver found. Looked for its management library here:',
    ...places,
    'What to do:',
    ...(isWSL()
      ? [
          '  under WSL 2, install the driver in Windows, and no Linux driver in here (`wsl --update` helps, too);',
        ]
      : []),
    '  on a machine with NVIDIA GPUs, install the driver, or reinstall it if its library is damaged (`nvidia-smi` should work);',
    '  in a container, start it with `--gpus all`;',
    `  ${librarySetting('GPU_OWNER_NVML_LIBRARY')};`,
    '  without a GPU, try a simulated machine: set GPU_OWNER_SIMULATE=4.',
  ].join('\n');
}

/** Whether there is no such library; otherwise there is one that can't be used. */
function isMissingLibrary({ error }: LibraryAttempt): boolean {
  return error.includes('No such file or directory');
}

/** Where else a driver's library may be, for a remedy: a variable that is set rules out all other places. */
export function librarySetting(variable: 'GPU_OWNER_NVML_LIBRARY' | 'GPU_OWNER_CUDA_LIBRARY'): string {
  return process.env[variable]
    ? `${variable} is set, so no other place was looked at: correct its path, or unset it`
    : `if the library is elsewhere, set ${variable} to its path`;
}

/** '13.0' of 13000, as the driver counts the versions of CUDA; null: it doesn't tell. */
export function cudaVersion(version: number): string | null {
  return version > 0 ? `${Math.floor(version / 1_000)}.${Math.floor((version % 1_000) / 10)}` : null;
}

/** Asks the driver; null: it doesn't answer. Blocks, some microseconds per pair of GPUs and NVLink. */
export function readTopology(): Topology | null {
  openDriver();
  const found = native().driverTopology();
  if (found === undefined) return null;
  const uuids = native()
    .driverDescribe()
    .map(({ uuid }) => uuid);
  return uuids.length === found.places.length ? { uuids, ...found } : null;
}
