// The use of a GPU: its processes and memory.
import type { ProcessDescription } from '../platform/index.ts';
import { computePids, isIdleMPSServer, isMPSServer, memoryOf } from './listed-processes.ts';
import { type GPU, type GPUProcess, type JudgeContext, SHARE_UNIT_BYTES } from './types.ts';

export interface ComputeProcess extends GPUProcess {
  who: ProcessDescription;
}

/** The use of a GPU, and its users. null: unknown. */
export interface Use {
  /** Living ones first, then by memory. Never the claimant's own. */
  compute: ComputeProcess[];
  living: boolean;
  graphics: GPUProcess[];
  /** A server of the Multi-Process Service runs on it, which admits several processes in any compute mode. */
  mps: boolean;
  /** Memory in use that no visible process of the kinds that are allowed explains. */
  unexplained: number | null;
  /** Memory that may come free in a moment: of compute processes that are ending, or of no visible process. */
  remains: number;
}

export function measureUse(gpu: GPU, { criteria, describe, ownPids, wsl, sharing }: JudgeContext): Use {
  const processes = gpu.processes ?? [];
  // Shares may use what they have, whether or not their processes are listed.
  const heldBytes = (sharing?.taken ?? 0) * SHARE_UNIT_BYTES;
  const computing = new Set(computePids(gpu));
  const isOwn = (pid: number) => ownPids?.has(pid) === true || sharing?.pids.has(pid) === true;
  const drawing = new Set(processes.filter(({ type }) => type === 'graphics').map(({ pid }) => pid));
  const others = [...computing]
    .filter((pid) => !isOwn(pid))
    .map((pid): ComputeProcess => {
      const who = describe?.(pid) ?? { name: null, user: null, uid: null, alive: 'alive' };
      return { pid, type: 'compute', usedBytes: memoryOf(gpu, pid), who };
    });
  const servers = others.filter(({ who, usedBytes }) => isIdleMPSServer(who, usedBytes));
  // To Windows, each of its programs that has a window computes and draws.
  const isWindows = ({ pid, who }: ComputeProcess) =>
    wsl === true && who.alive === 'gone' && drawing.has(pid);
  const compute = others
    .filter((process) => !servers.includes(process) && !isWindows(process))
    .sort((a, b) => Number(isAlive(b)) - Number(isAlive(a)) || (b.usedBytes ?? 0) - (a.usedBytes ?? 0));
  const living = compute.some(isAlive);
  const counted = new Set(compute.map(({ pid }) => pid));
  const graphics = processes.filter(
    ({ pid, type }) => type === 'graphics' && !counted.has(pid) && !isOwn(pid),
  );
  const own = [...computing].filter(isOwn).map((pid) => memoryOf(gpu, pid) ?? 0);
  const { usedBytes } = gpu.memory;
  const explained =
    sum([...graphics, ...servers].map((process) => process.usedBytes ?? 0)) + Math.max(sum(own), heldBytes);
  const beyond = usedBytes === null ? null : Math.max(0, usedBytes - explained);
  const byCompute = sum(compute.map((process) => process.usedBytes ?? 0));
  const acceptsCompute = criteria.allowProcesses && criteria.maxUsedMemory === null;
  const nobodys = Math.max(0, (beyond ?? 0) - byCompute);
  return {
    compute,
    living,
    graphics,
    mps: others.some(({ who }) => isMPSServer(who)),
    unexplained: beyond === null || !acceptsCompute ? beyond : nobodys,
    remains:
      sum(compute.filter((process) => !isAlive(process)).map((process) => process.usedBytes ?? 0)) +
      (living ? 0 : nobodys),
  };
}

function isAlive({ who }: ComputeProcess): boolean {
  return who.alive === 'alive';
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
