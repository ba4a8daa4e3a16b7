// When a request would start on a machine, as far as its leases and its queue tell.
import type { RemoteSnapshot } from './records.ts';

/** The assumed time of a job whose limit isn't known, in ms. */
const USUAL_MS = 3_600_000;

/** The parts of a snapshot that decide. */
export type Load = {
  gpus: readonly { state: string; until: number | null }[];
  /** Requests in the order in which they are served: how many GPUs each wants. */
  queue: readonly number[];
};

export function loadOf({ gpus, queue }: Pick<RemoteSnapshot, 'gpus' | 'queue'>): Load {
  return {
    gpus: gpus.map(({ state, lease }) => ({ state, until: Date.parse(lease?.until ?? '') || null })),
    queue: queue.map(({ count }) => count),
  };
}

/**
 * How long a request waits that joins the queue of this machine, in ms, if those ahead keep their order; Infinity: it has too few GPUs. Only
 * comparisons mean something: where no limit is known, an hour stands for it.
 */
export function expectedWait({ gpus, queue }: Load, count: number, now: number): number {
  const free = gpus
    .filter(({ state }) => state !== 'unavailable')
    .map(({ state, until }) => (state === 'free' ? 0 : until === null ? USUAL_MS : Math.max(0, until - now)));
  for (const ahead of queue) {
    free.sort((a, b) => a - b);
    const start = free[ahead - 1];
    if (start !== undefined) free.fill(start + USUAL_MS, 0, ahead);
  }
  free.sort((a, b) => a - b);
  return free[count - 1] ?? Number.POSITIVE_INFINITY;
}

/** Hosts, the one first where a request is expected to start first. Ties are decided by chance. */
export function byExpectedWait<T>(
  known: readonly { host: T; snapshot: Pick<RemoteSnapshot, 'gpus' | 'queue'> }[],
  count: number,
): T[] {
  const now = Date.now();
  return known
    .map(({ host, snapshot }) => ({
      host,
      wait: expectedWait(loadOf(snapshot), count, now),
      chance: Math.random(),
    }))
    .sort((a, b) => a.wait - b.wait || a.chance - b.chance)
    .map(({ host }) => host);
}
