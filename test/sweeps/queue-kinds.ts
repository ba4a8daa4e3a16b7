import { noRedis, RedisServer, type ServerOptions } from '../support/redis-server.ts';

/** Somewhere to have the queue of an experiment. */
export interface QueueKind {
  name: string;
  /** Why it can't be had here; null: it can. */
  missing: string | null;
  /** A new one. */
  start(): Promise<{
    /** Variables that commands need to use it. */
    env: Record<string, string>;
    /** null: there is none. */
    server: RedisServer | null;
    remove(): Promise<void>;
  }>;
}

/** In seconds. By default, a dead manager's work would pass on after a minute. */
const TIMES = 'patience=2&margin=0.5';

export const SQLITE: QueueKind = {
  name: 'SQLite',
  missing: null,
  start: async () => ({ env: {}, server: null, remove: async () => {} }),
};

export const REDIS: QueueKind = redisKind({});

function redisKind(options: ServerOptions): QueueKind {
  return {
    name: noRedis === null ? 'Redis' : `Redis: ${noRedis}`,
    missing: noRedis,
    start: async () => {
      const server = await RedisServer.start(options);
      const env = { GPU_OWNER_QUEUE: server.url(`project=test&${TIMES}`) };
      return { env, server, remove: () => server.remove() };
    },
  };
}

export const KINDS: readonly QueueKind[] = [SQLITE, REDIS];
