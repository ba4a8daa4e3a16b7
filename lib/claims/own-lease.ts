import type { LeaseInfo } from '../gpus/index.ts';
import { hostName, processCommand, readProcessStat } from '../platform/index.ts';

/** A chain of parents that is longer is cut off: each link is a file to read. */
const MAX_ANCESTORS = 32;

/**
 * Completes the reason of a lease that the asking program holds itself, through a parent, or by another `gpu-owner hold`:
 * a wait for it could last for ever. Empty for leases of others.
 */
export function ownLeaseNote(lease: LeaseInfo | null): string {
  if (lease === null || lease.pid === null || lease.host !== hostName()) return '';
  if (lease.pid === process.pid) return '; that is this process: release it first';
  const ancestors = ancestorsOf(process.pid);
  if (ancestors.includes(lease.pid)) return '; that process started this one, and must release it first';
  const parent = readProcessStat(lease.pid)?.parent ?? 0;
  return ancestors.includes(parent) && isHold(lease.pid)
    ? `; held for pid ${parent}, which also makes this claim: release it first`
    : '';
}

/** Its parent first; without the process that adopts all. */
function ancestorsOf(pid: number): number[] {
  const found: number[] = [];
  for (let next = pid; found.length < MAX_ANCESTORS; ) {
    next = readProcessStat(next)?.parent ?? 0;
    if (next <= 1) break;
    found.push(next);
  }
  return found;
}

/** `gpu-owner hold`, as programs in other languages claim. */
function isHold(pid: number): boolean {
  return / hold( |$)/.test(processCommand(pid) ?? '');
}
