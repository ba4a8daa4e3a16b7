// The errors of CUDA's driver API. Names and meaning: CUDA Driver API, "Data types", CUresult
// (https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html). Causes as people have met them: 802 pytorch#35710,
// gpustack#4154; 999 after a suspend pytorch#49081; 804 gpustack#1254.

interface CudaCode {
  /** As CUDA names it; null: it isn't known here. */
  name: string | null;
  cause: string;
  /** Sentences, with commands in backticks. */
  remedy: string;
  /**
   * gpu: another GPU may do, and this one is suspect; use: another one may do, but this one isn't at fault; machine: no other GPU
   * of the machine would do.
   */
  blames: 'gpu' | 'use' | 'machine';
}

/** The driver resets no GPU, and changes its MIG mode only, while no program has it open: gpu-owner's own that run for long are named. */
export const BEFORE_RESET =
  'end what has the GPU open (`fuser -v /dev/nvidia*`; also `gpu-owner web`, `metrics --listen` and a `run` that waits), then as root';

/** 'Reset the GPU: …', without a full stop. @param index the GPU's number, if it is known */
export function resetOf(index: number | 'N'): string {
  return `Reset the GPU: ${BEFORE_RESET} \`nvidia-smi --gpu-reset -i ${index}\``;
}

const RESET = `${resetOf('N')}, or reboot.`;
const XID = '`dmesg | grep -i xid` says what the driver saw.';
const MPS =
  'Restart the MPS control daemon: `echo quit | nvidia-cuda-mps-control`, `nvidia-cuda-mps-control -d`.';

export const CUDA_CODES: Readonly<Record<number, CudaCode>> = {
  2: {
    name: 'CUDA_ERROR_OUT_OF_MEMORY',
    cause: 'out of memory: of the GPU, or of this process (`ulimit -v`)',
    remedy: '`nvidia-smi` shows what uses the memory.',
    blames: 'use',
  },
  3: {
    name: 'CUDA_ERROR_NOT_INITIALIZED',
    cause: 'CUDA could not be initialised: the driver is being loaded or unloaded, or has failed',
    remedy: XID,
    blames: 'gpu',
  },
  34: {
    name: 'CUDA_ERROR_STUB_LIBRARY',
    cause: 'the CUDA library is the stub of the CUDA toolkit, which only serves for linking',
    remedy: "Take the toolkit's `stubs` directory out of LD_LIBRARY_PATH.",
    blames: 'machine',
  },
  46: {
    name: 'CUDA_ERROR_DEVICE_UNAVAILABLE',
    cause: 'another process has the GPU for itself (compute mode exclusive-process), or the GPU hangs',
    remedy: `\`nvidia-smi\` shows the process, unless it runs in another container. If there is none, the GPU hangs. ${RESET}`,
    blames: 'gpu',
  },
  100: {
    name: 'CUDA_ERROR_NO_DEVICE',
    cause: 'CUDA finds no GPU: a device file is missing or may not be opened here, or the GPU has failed',
    remedy:
      'Compare `ls -l /dev/nvidia*` with a machine that works. A container that has lost its GPUs must be restarted.',
    blames: 'gpu',
  },
  101: {
    name: 'CUDA_ERROR_INVALID_DEVICE',
    cause: "CUDA doesn't show this GPU, though NVML does",
    remedy: `Look whether its device file may be opened here (\`ls -l /dev/nvidia*\`). ${XID}`,
    blames: 'gpu',
  },
  214: {
    name: 'CUDA_ERROR_ECC_UNCORRECTABLE',
    cause: "the GPU's memory has an error that ECC can't correct",
    remedy: `${RESET} If it comes again (\`nvidia-smi -q -d ECC,ROW_REMAPPER\`), the card must be replaced.`,
    blames: 'gpu',
  },
  304: {
    name: 'CUDA_ERROR_OPERATING_SYSTEM',
    cause:
      'the operating system refused a call of CUDA, often because /dev/nvidia-uvm is missing or forbidden',
    remedy: 'As root: `nvidia-modprobe -u -c=0`. In a container, pass /dev/nvidia-uvm, too.',
    blames: 'gpu',
  },
  // Our own placeholder fails with it, too.
  500: {
    name: 'CUDA_ERROR_NOT_FOUND',
    cause: 'the CUDA library lacks a function',
    remedy: 'Install the CUDA library of the same version as the driver (`gpu-owner doctor` shows both).',
    blames: 'machine',
  },
  802: {
    name: 'CUDA_ERROR_SYSTEM_NOT_READY',
    cause: "GPUs with NVSwitch (HGX, DGX) need NVIDIA's Fabric Manager, and it isn't running",
    remedy:
      'As root: `systemctl enable --now nvidia-fabricmanager`, of exactly the same version as the driver. Without NVSwitch: `systemctl status nvidia-persistenced`, and wait until the driver has started.',
    blames: 'machine',
  },
  803: {
    name: 'CUDA_ERROR_SYSTEM_DRIVER_MISMATCH',
    cause: "the CUDA library and the kernel's driver have different versions, as after an update",
    remedy: 'Reboot, or load the new kernel modules. In a container, restart it.',
    blames: 'machine',
  },
  804: {
    name: 'CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE',
    cause:
      "the CUDA library is a newer driver's (forward compatibility), which only data-centre GPUs support",
    remedy:
      'Take the `cuda-compat` package, or its directory in LD_LIBRARY_PATH, away (in images: /usr/local/cuda/compat), or update the driver.',
    blames: 'machine',
  },
  805: {
    name: 'CUDA_ERROR_MPS_CONNECTION_FAILED',
    cause: 'the MPS control daemon does not answer',
    remedy: MPS,
    blames: 'machine',
  },
  807: {
    name: 'CUDA_ERROR_MPS_SERVER_NOT_READY',
    cause: 'the MPS server takes no clients now: it restarts after an error of one of them',
    remedy: MPS,
    blames: 'machine',
  },
  999: {
    name: 'CUDA_ERROR_UNKNOWN',
    cause: 'the GPU has failed, or the kernel module nvidia_uvm has, as after a suspend',
    remedy: `After a suspend, as root: \`rmmod nvidia_uvm && modprobe nvidia_uvm\`. After other failures: ${XID} ${RESET}`,
    blames: 'gpu',
  },
};

/** Stands for CUDA's code where a call of CUDA did not return in time. CUDA has no such code. */
export const CUDA_HANGS = 9_999;

const HANGS: CudaCode = {
  name: 'NO_ANSWER',
  cause: 'the GPU or its driver hangs',
  remedy: `${XID} ${RESET}`,
  blames: 'gpu',
};

export function cudaCode(code: number): CudaCode {
  if (code === CUDA_HANGS) return HANGS;
  return (
    CUDA_CODES[code] ?? {
      name: null,
      cause: 'CUDA tells no more than this code (CUresult in the documentation of its driver API)',
      remedy: XID,
      blames: 'gpu',
    }
  );
}

/** '999 (CUDA_ERROR_UNKNOWN)' */
export function showCudaCode(code: number): string {
  const { name } = cudaCode(code);
  return name === null ? String(code) : `${code} (${name})`;
}

/** 'CUDA failed with 999 (CUDA_ERROR_UNKNOWN) in cuInit', or 'CUDA did not answer in time' @param stage '': unknown */
export function cudaFailed(code: number, stage = ''): string {
  if (code === CUDA_HANGS) return 'CUDA did not answer in time';
  return `CUDA failed with ${showCudaCode(code)}${stage && ` in ${stage}`}`;
}

/** The cause and the remedy, for the GPU with this number. */
export function explainCudaCode(code: number, index?: number): { cause: string; remedy: string } {
  const { cause, remedy } = cudaCode(code);
  return { cause, remedy: index === undefined ? remedy : remedy.replaceAll('-i N', `-i ${index}`) };
}
