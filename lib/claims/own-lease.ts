import type { LeaseInfo } from '../gpus/index.ts';
import { hostName, lineage, processCommand, readProcessStat } from '../platform/index.ts';

/** A chain of parents that is longer is cut off: each link is a file to read. */
const MAX_ANCESTORS = 32;

/**
 * Completes the reason of a lease that the asking program holds itself, through a parent, or by another `gpu-owner hold`:
 * a wait for it could last for ever. Empty for leases of others.
 */
export function ownLeaseNote(lease: LeaseInfo | null): string {
  if (lease === null || lease.pid === null || lease.host !== hostName()) return '';
  if (lease.pid === process.pid) return '; that is this process: release it first';
  const [, ...above] = lineage(process.pid, MAX_ANCESTORS + 1);
  if (above.includes(lease.pid)) return '; that process started this one, and must release it first';
  const parent = readProcessStat(lease.pid)?.parent ?? 0;
  return above.includes(parent) && isHold(lease.pid)
    ? `; held for pid ${parent}, which also makes this claim: release it first`
    : '';
}

/** `gpu-owner hold`, as programs in other languages claim. */
function isHold(pid: number): boolean {
  return / hold( |$)/.test(processCommand(pid) ?? '');
}
