import type { Pause, Queue } from '../queue.ts';
import { readNeeds, readPause, readSearch, readTime } from '../records.ts';
import type { JobStore } from './store.ts';

/** The methods of a queue about its needs, its search, and its pause: BullMQ's own, and a record that says why. */
export function settingMethods(
  store: JobStore,
): Pick<Queue, 'pause' | 'resume' | 'paused' | 'needs' | 'setNeeds' | 'setSearch' | 'search' | 'report'> {
  const { jobs, redis } = store;
  const settings = store.key('settings');

  return {
    async pause(by, message) {
      await store.check();
      const before = await redis.hget(settings, 'pause');
      // A pause by a person stands, and so does the first message.
      const stands = before !== null && (readPause(before).by === 'person' || readPause(before).by === by);
      const record: Pause = { by, message, since: Date.now() };
      if (!stands) await redis.hset(settings, 'pause', JSON.stringify(record));
      await jobs.pause(true);
    },

    async resume() {
      await store.check();
      // Twice: a process that finds BullMQ paused without our record takes that for a pause in a dashboard.
      await jobs.pause(false);
      await redis.hdel(settings, 'pause', 'outside');
      await jobs.pause(false);
    },

    async paused() {
      await store.check();
      const [text, outside] = await redis.hmget(settings, 'pause', 'outside');
      if (text) return readPause(text);
      const isPaused = await jobs.hasQueueMetaField('paused');
      if (!isPaused) {
        if (outside) await redis.hdel(settings, 'outside');
        return null;
      }
      // A dashboard doesn't say since when: since it was first seen.
      if (!outside) await redis.hsetnx(settings, 'outside', Date.now());
      const since = readTime(await redis.hget(settings, 'outside')) ?? Date.now();
      return { by: 'person', message: 'paused in a dashboard of BullMQ', since };
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
