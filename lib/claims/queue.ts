import { loadConfiguration, normalizeCriteria, refuseNoObject } from '../config/index.ts';
import type { GPUReason } from '../errors.ts';
import type { LeaseInfo } from '../gpus/index.ts';
import { discover } from './discovery.ts';
import { runAsync } from './effects.ts';
import { reservedFor } from './fairness.ts';
import { LockDirectory } from './lock-directory.ts';
import { type ClaimOptions, checkConventions, checkDirectory } from './options.ts';
import { thatCount, waitersIn } from './wait-queue.ts';

/** Somebody who stands in line. */
export interface QueueEntry extends Pick<LeaseInfo, 'user' | 'uid' | 'pid' | 'host' | 'command' | 'since'> {
  /** 1 is served first. */
  position: number;
  /** How many GPUs they wait for. */
  count: number;
  /** Stopped (in a debugger, by Ctrl-Z) or stuck: passed over until it goes on. */
  stopped: boolean;
  /** The GPUs that would do, each with what is in the way. */
  waitingFor: GPUReason[];
}

/** Where to look, and whose locks count. */
export type QueueOptions = Pick<ClaimOptions, 'lockDirectory' | 'conventions'>;

/** Who stands in line on this machine, in order. Takes nothing. @throws as `getGPUs` */
export async function getQueue(options: QueueOptions = {}): Promise<QueueEntry[]> {
  refuseNoObject(options);
  const configuration = loadConfiguration();
  const lockDirectory = checkDirectory(options.lockDirectory, 'lockDirectory');
  const directory = LockDirectory.find(lockDirectory, configuration);
  const waiters = [...waitersIn(directory)];
  if (waiters.length === 0) return [];
  const request = {
    criteria: normalizeCriteria({}),
    lockDirectory,
    conventions: checkConventions(options.conventions, configuration, 'conventions'),
    count: 1,
  };
  const gpus = await runAsync(discover(request, configuration.lockDirectory, 'machine'));
  return waiters.map((waiter, i) => {
    const reserved = reservedFor(waiter.uuids, waiter.scope, thatCount(waiters.slice(0, i)));
    const waitingFor = gpus
      .filter(({ uuid }) => waiter.uuids.includes(uuid))
      .map(({ index, instance, uuid, reason }) => {
        const before = reserved.get(uuid);
        const position =
          before === undefined ? 0 : waiters.findIndex(({ place }) => place === before.place) + 1;
        return {
          index,
          ...(instance === null ? {} : { instance }),
          uuid,
          reason: reason ?? (position > 0 ? `free, but position ${position} comes first` : 'free'),
        };
      });
    const { user, uid, pid, host, command, since } = waiter.info;
    const { count, stopped } = waiter;
    return { position: i + 1, count, user, uid, pid, host, command, since, stopped, waitingFor };
  });
}
