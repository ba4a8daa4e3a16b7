import type { Needs } from '../queue.ts';
import { readCount } from '../records.ts';
import type { JobStore } from './store.ts';

// Needs of tasks that need more than one GPU. BullMQ gives jobs out in their order, to any worker.

/** By id, of tasks that need more than others. */
export async function allNeeds(store: JobStore): Promise<Map<string, Needs>> {
  const found = await store.redis.hgetall(store.key('needs'));
  return new Map(Object.entries(found).map(([id, text]) => [id, parseNeeds(text)]));
}

export function parseNeeds(text: string): Needs {
  const [gpus = 0, memory = 0] = text.split(' ').map(readCount);
  return { gpus, memory };
}

export function fits(needs: Needs | undefined, offer: Needs): boolean {
  return needs === undefined || (needs.gpus <= offer.gpus && needs.memory <= offer.memory);
}

/** Puts the next job for which so much is enough before all others, where BullMQ takes it. @returns false: there is none */
export async function putFirst(store: JobStore, offer: Needs): Promise<boolean> {
  const needs = await allNeeds(store);
  if ([...needs.values()].every((each) => fits(each, offer))) return true;
  const isFirst = async (id: string | undefined) => {
    if (id !== undefined) await store.jobs.changePriority(id, 1, true);
    return id !== undefined;
  };
  const first = (await store.waitingIds()).find((id) => fits(needs.get(id), offer));
  if (first !== undefined) return isFirst(first);
  const now = Date.now();
  for (const { id, status } of (await store.delayed()).delayed) {
    if ((status.due ?? Number.POSITIVE_INFINITY) > now || !fits(needs.get(id), offer)) continue;
    await store.jobs.promote(id);
    return isFirst(id);
  }
  return false;
}
