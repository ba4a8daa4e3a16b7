// The sums of each user, for the terminal and for the page, which has nothing of Node.js.
import type { MachineSnapshot } from './machine-view.ts';

export interface UserTotal {
  gpus: number;
  /** MIG instances. */
  instances: number;
  /** Shares of GPUs. */
  shares: number;
  /** In bytes, what processes without a claim use included. */
  memory: number;
  /** In percent, of each GPU that tells it; those that are used without a claim included. */
  utilization: number[];
  idle: number;
  /** Requests in the wait queue. */
  waiting: number;
  /** GPUs and MIG instances that are used without a claim. */
  unclaimed: number;
}

/**
 * The sums of each user, by the uid. Machines may have other uids for the same people, so users of different machines with the same
 * name are one.
 *
 * @param unknown stands for users without a known name
 */
export function userTotals(
  snapshots: readonly MachineSnapshot[],
  isIdle: (gpu: MachineSnapshot['gpus'][number]) => boolean,
  unknown: string,
): Map<string, UserTotal> {
  const totals = new Map<string, UserTotal>();
  const totalOf = (user: string): UserTotal => {
    const none = { gpus: 0, instances: 0, shares: 0, memory: 0, utilization: [] };
    const more = { idle: 0, waiting: 0, unclaimed: 0 };
    const total = totals.get(user) ?? { ...none, ...more };
    totals.set(user, total);
    return total;
  };
  for (const snapshot of snapshots) {
    const { gpus, queue, intruders } = snapshot;
    const nameOf = userNames(snapshot, unknown);
    for (const gpu of gpus) {
      for (const share of gpu.shares) {
        const total = totalOf(nameOf(share));
        total.shares++;
        total.memory += share.usedBytes ?? 0;
      }
      if (gpu.lease === null) continue;
      const total = totalOf(nameOf(gpu.lease));
      if (gpu.instance === null) total.gpus++;
      else total.instances++;
      total.memory += gpu.memory.usedBytes ?? 0;
      if (gpu.utilizationPercent !== null) total.utilization.push(gpu.utilizationPercent);
      if (isIdle(gpu)) total.idle++;
    }
    for (const request of queue) totalOf(nameOf(request)).waiting++;
    const used = new Set<string>();
    for (const intruder of intruders) {
      const user = nameOf(intruder);
      const total = totalOf(user);
      total.memory += intruder.usedBytes ?? 0;
      // Several processes may be on a GPU.
      if (used.size === used.add(`${intruder.uuid} ${user}`).size) continue;
      total.unclaimed++;
      const gpu = gpus.find(({ uuid }) => uuid === intruder.uuid);
      if (gpu?.lease === null && gpu.utilizationPercent !== null)
        total.utilization.push(gpu.utilizationPercent);
    }
  }
  return totals;
}

interface Person {
  user: string | null;
  uid: number | null;
}

/** One name for each uid of a machine: of users who are called the same, with the uid. */
function userNames({ gpus, queue, intruders }: MachineSnapshot, unknown: string): (person: Person) => string {
  const names = new Map<number, string>();
  const uids = new Map<string, Set<number>>();
  for (const { user, uid } of [
    ...gpus.flatMap(({ lease, shares }) => [...(lease === null ? [] : [lease]), ...shares]),
    ...queue,
    ...intruders,
  ]) {
    if (uid === null || user === null) continue;
    names.set(uid, names.get(uid) ?? user);
    uids.set(user, (uids.get(user) ?? new Set()).add(uid));
  }
  return ({ user, uid }) => {
    const name = (uid === null ? null : names.get(uid)) ?? user ?? unknown;
    return uid !== null && (uids.get(name)?.size ?? 0) > 1 ? `${name} (uid ${uid})` : name;
  };
}
