import type { Pause, Queue } from '../queue.ts';
import { readNeeds, readPause, readSearch } from '../records.ts';
import type { JobStore } from './store.ts';

/** The methods of a queue about its needs, its search, and its pause: BullMQ's own would keep us from completing tasks by rows of tables. */
export function settingMethods(
  store: JobStore,
): Pick<Queue, 'pause' | 'resume' | 'paused' | 'needs' | 'setNeeds' | 'setSearch' | 'search' | 'report'> {
  const { redis } = store;
  const settings = store.key('settings');

  return {
    async pause(by, message) {
      await store.check();
      const before = await redis.hget(settings, 'pause');
      // A pause by a person stands, and so does the first message.
      const stands = before !== null && (readPause(before).by === 'person' || readPause(before).by === by);
      const record: Pause = { by, message, since: Date.now() };
      if (!stands) await redis.hset(settings, 'pause', JSON.stringify(record));
      await store.notify();
    },

    async resume() {
      await store.check();
      await redis.hdel(settings, 'pause');
      await store.notify();
    },

    async paused() {
      await store.check();
      const text = await redis.hget(settings, 'pause');
      return text === null ? null : readPause(text);
    },

    async needs() {
      await store.check();
      return readNeeds(await redis.hget(settings, 'needs'));
    },

    async setNeeds(needs) {
      const kept = { ...(await this.needs()), ...needs };
      await redis.hset(settings, 'needs', JSON.stringify(kept));
    },

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
