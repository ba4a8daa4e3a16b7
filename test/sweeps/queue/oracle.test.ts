import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import { Random } from '../../support/random.ts';
import { noRedis, RedisServer } from '../../support/redis-server.ts';
import { all } from './conformance.ts';
import { Pair } from './fixtures/pair.ts';
import { spec } from './fixtures/tasks.ts';
import { Network } from './network.ts';

/** Seed of the first random sequence; the next one's is one more. */
const SEED = Number(process.env.GPU_OWNER_TEST_SEED ?? Date.now() % 1_000_000);
/** For each test. */
const SECONDS = Number(process.env.GPU_OWNER_TEST_SECONDS ?? (process.env.GPU_OWNER_SOAK ? 60 : 1));

describe.skipIf(noRedis !== null)('Redis and SQLite', () => {
  let server: RedisServer;
  let directory: string;
  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), 'gpu-owner-oracle-'));
    server = await RedisServer.start();
  });
  afterAll(async () => {
    await server.remove();
    rmSync(directory, { recursive: true, force: true });
  });

  /** @param network between the queues on Redis and their server */
  const compare = async (port: number, network: Network | null) => {
    const end = performance.now() + 1_000 * SECONDS;
    let steps = 0;
    // A busy machine does it for longer.
    const goesOn = () => steps <= 20 || performance.now() < end;
    for (let seed = SEED; goesOn(); seed++) {
      const random = new Random(seed);
      const queues = [
        await openQueue(`sqlite:${join(mkdtempSync(join(directory, 'queue-')), 'queue.db')}`, directory),
        await openQueue(
          `redis://127.0.0.1:${port}/0?project=${network === null ? 'same' : 'lost'}-${seed}`,
          directory,
        ),
      ] as const;
      const specs = Array.from({ length: 1 + random.integer(2) }, (_, n) => spec({ n }));
      for (const queue of queues) await queue.enqueue(specs);
      const ids = (await all(queues[0].tasks())).map(({ task }) => task.id);
      const pair = new Pair(queues, ids, random, network);
      try {
        for (let step = 0; step < 40 && !pair.parted && goesOn(); step++, steps++) {
          if (network !== null && random.integer(10) === 0) server.command('SCRIPT', 'FLUSH');
          network?.loseAnswer(random.integer(5) === 0);
          await pair.step();
        }
      } catch (error) {
        throw new Error(`GPU_OWNER_TEST_SEED=${seed}: ${pair.log.join('\n')}`, { cause: error });
      } finally {
        for (const queue of queues) await queue.close();
      }
    }
    expect(steps).toBeGreaterThan(20);
  };
  const timeout = 1_000 * SECONDS + 120_000;

  test(`come to the same, whatever they are told (seed ${SEED})`, { timeout }, async () => {
    await compare(server.port, null);
  });

  test(`also where answers are lost, and scripts forgotten (seed ${SEED})`, { timeout }, async () => {
    const network = await Network.start(server.port);
    try {
      await compare(network.port, network);
    } finally {
      network.close();
    }
  });
});
