// The sums of each user, for the terminal and for the page, which has nothing of Node.js.
import type { MachineSnapshot } from './machine-view.ts';

export interface UserTotal {
  gpus: number;
  /** MIG instances. */
  instances: number;
  /** In bytes. */
  memory: number;
  /** In percent, of each that tells it. */
  utilization: number[];
  idle: number;
  /** Requests in the wait queue. */
  waiting: number;
  /** Processes. */
  withoutClaim: number;
}

/** @param unknown stands for users whom nobody can name */
export function userTotals(
  snapshots: readonly MachineSnapshot[],
  isIdle: (gpu: MachineSnapshot['gpus'][number]) => boolean,
  unknown: string,
): Map<string, UserTotal> {
  const totals = new Map<string, UserTotal>();
  const totalOf = (user: string): UserTotal => {
    const none = { gpus: 0, instances: 0, memory: 0, utilization: [], idle: 0, waiting: 0, withoutClaim: 0 };
    const total = totals.get(user) ?? none;
    totals.set(user, total);
    return total;
  };
  for (const { gpus, queue, intruders } of snapshots) {
    for (const gpu of gpus) {
      if (gpu.lease === null) continue;
      const total = totalOf(gpu.lease.user);
      if (gpu.instance === null) total.gpus++;
      else total.instances++;
      total.memory += gpu.memory.usedBytes ?? 0;
      if (gpu.utilizationPercent !== null) total.utilization.push(gpu.utilizationPercent);
      if (isIdle(gpu)) total.idle++;
    }
    for (const { user } of queue) totalOf(user).waiting++;
    // A process may be on several GPUs.
    const users = new Map(intruders.map(({ pid, user }) => [pid, user ?? unknown]));
    for (const user of users.values()) totalOf(user).withoutClaim++;
  }
  return totals;
}
