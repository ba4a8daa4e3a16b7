import type { Queue } from '../queue.ts';
import { readSearch } from '../records.ts';
import type { JobStore } from './store.ts';

/** The methods of a queue about its search. */
export function searchMethods(store: JobStore): Pick<Queue, 'setSearch' | 'search' | 'report'> {
  const { redis } = store;
  const settings = store.key('settings');
  return {
    async setSearch(search) {
      await store.check();
      await redis.hset(settings, 'search', JSON.stringify(search));
    },
    async search() {
      await store.check();
      return readSearch(await redis.hget(settings, 'search'));
    },
    async report({ phase, id, step, value }) {
      await store.check();
      const key = store.key(`report:${step}:${phase}`);
      await redis.hset(key, id, value);
      const { [id]: _, ...others } = await redis.hgetall(key);
      return Object.values(others).map(Number).filter(Number.isFinite);
    },
  };
}
