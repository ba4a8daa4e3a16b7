import { afterAll, beforeAll, describe } from 'vitest';
import { testConformance } from './conformance.ts';
import { noRedis, RedisServer } from './redis-server.ts';

/** In seconds: tests can't wait for a minute until a task is given out again. */
const TIMES = 'patience=1.2&margin=0.5';

describe.skipIf(noRedis !== null)(`on Redis${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  let server: RedisServer;
  let made = 0;
  beforeAll(async () => {
    server = await RedisServer.start();
  });
  afterAll(() => server.remove());

  testConformance({
    name: 'BullMQ',
    make: async () => ({
      url: server.url(`project=test-${++made}&${TIMES}`),
      remove: async () => {
        server.command('FLUSHALL');
      },
    }),
    recovery: 10_000,
    seesProcesses: false,
  });
});
