import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import { Random } from '../../support/random.ts';
import { noRedis, queueName, RedisServer } from '../../support/redis-server.ts';
import { takeFrom, worker } from './conformance.ts';
import { plainTasks } from './fixtures/tasks.ts';
import { misuse } from './misuse.ts';

/** Records on a Redis that anybody who may write there has changed: what was asked is answered, or ERR_QUEUE. */

const SEED = Number(process.env.GPU_OWNER_TEST_SEED ?? Date.now() % 1_000_000);
const SECONDS = Number(process.env.GPU_OWNER_TEST_SECONDS ?? (process.env.GPU_OWNER_SOAK ? 60 : 0.5));
const FEWEST = 3;

const VALUES: readonly string[] = [
  '',
  '0',
  '-1',
  '1e400',
  'x',
  '{',
  'null',
  '[]',
  '{}',
  '{"a":',
  '[1,2,3]',
  '["a"]',
  '["a",5]',
  '{"words":5}',
  '\u001b]0;title\u0007',
  '"',
  '"NaN',
  '\xff\xfe',
  '['.repeat(300),
  '999999999999999999999',
];

describe.skipIf(noRedis !== null)(`on Redis${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  let server: RedisServer;
  let url: string;
  beforeAll(async () => {
    server = await RedisServer.start({ settings: ['appendfsync no'] });
  });
  afterAll(() => server.remove());

  beforeEach(make);

  /** A new one, with tasks in all states. */
  async function make(): Promise<void> {
    server.command('FLUSHALL');
    url = server.url('project=damaged&patience=0.4&margin=0.1');
    const queue = await openQueue(url, '/');
    await queue.enqueue(plainTasks(30));
    for (let n = 0; n < 8; n++) {
      const { token } = await takeFrom(queue);
      await queue.setLog(token, { path: '/log', from: 0, to: n });
      if (n % 4 === 0) await queue.fail(token, { error: 'exit code 1', retry: n % 8 === 0 });
      else await queue.complete(token, { loss: n / 7, list: [1, { a: null }] });
    }
    await queue.cancel({ ids: ['exp1_20_2', 'exp1_21_0'] });
    await queue.retry({ ids: ['exp1_1_1'] });
    await queue.take(worker, { lifetime: 60_000 });
    await queue.take(worker, { lifetime: 1 }); // overdue
    await queue.take(worker); // this worker gives no sign of life any longer
    await queue.pause('failures', 'too many');
    await queue.close();
  }

  const NAME = queueName('damaged');
  const PREFIXES = { ours: `gpu-owner-tasks:${NAME}:`, jobs: `gpu-owner:${NAME}:` };

  const keys = (prefix: string, pattern: string) =>
    server.command('--scan', '--pattern', `${prefix}${pattern}`).trim().split('\n').sort();
  /** The keys of all tasks. */
  const jobs = () => keys(PREFIXES.jobs, 't-*').filter((key) => !/:(?:lock|logs)$/.test(key));

  async function expectNothingWrong(what: string): Promise<void> {
    expect(await misuse(() => openQueue(url, '/')), what).toEqual([]);
  }

  test('a sound queue answers everything', () => expectNothingWrong('nothing'));

  const FIELDS = {
    job: 'name data opts progress returnvalue failedReason pb processedOn finishedOn atm stc ats priority delay timestamp',
    settings: 'sequence pause project',
  };
  const JOB = FIELDS.job.split(' ');
  // One has none; each of the others has another value.
  const values = [null, ...VALUES];
  const change = (key: string, field: string, at: number): string[] => {
    const value = values[at % values.length] ?? null;
    return value === null ? ['HDEL', key, field] : ['HSET', key, field, value];
  };

  test.each(JOB.filter((_, at) => at % 2 === 0).map((field, at) => [field, JOB[2 * at + 1] ?? 'name']))(
    'no error but of the queue if jobs have anything, or nothing, in %s and %s',
    async (...fields) => {
      server.commands(
        jobs().flatMap((key, at) => fields.map((field, more) => change(key, field, at + 7 * more))),
      );
      await expectNothingWrong(fields.join());
    },
    120_000,
  );

  test.each(process.env.GPU_OWNER_SOAK ? [0, 1, 2, 3] : [0, 2])(
    'no error but of the queue if the settings have anything, or nothing, in round %i',
    async (round) => {
      const key = `${PREFIXES.ours}settings`;
      server.commands(FIELDS.settings.split(' ').map((field, at) => change(key, field, 5 * round + 4 * at)));
      await expectNothingWrong(`round ${round}`);
    },
    120_000,
  );

  test.each([null, '', 'x', '999999999999999999999'])(
    'no error but of the queue if its format is %j',
    async (format) => {
      server.commands([change(`${PREFIXES.ours}settings`, 'format', values.indexOf(format))]);
      await expectNothingWrong('format');
    },
  );

  test.each(['order', 'names', 'phases', 'completions', 'retracted', 'logs', 'manager'])(
    'no error but of the queue if %s is gone, or of another kind',
    async (name) => {
      const key = `${PREFIXES.ours}${name}`;
      server.command('DEL', key);
      await expectNothingWrong('gone');
      await make();
      server.command('SET', key, 'something else');
      await expectNothingWrong('a text');
    },
  );

  test(`nothing goes wrong for others with random fields (GPU_OWNER_TEST_SEED=${SEED})`, async () => {
    const end = performance.now() + 1_000 * SECONDS;
    for (let seed = SEED; seed < SEED + FEWEST || performance.now() < end; seed++) {
      const random = new Random(seed);
      await make();
      const kinds = Object.entries(FIELDS);
      const found = jobs();
      const changes = Array.from({ length: 20 }, () => {
        const [kind, fields] = random.pick(kinds) as (typeof kinds)[number];
        const key = kind === 'job' ? (random.pick(found) as string) : `${PREFIXES.ours}settings`;
        return ['HSET', key, random.pick(fields.split(' ')) as string, random.pick(VALUES) as string];
      });
      server.commands(changes);
      await expectNothingWrong(`GPU_OWNER_TEST_SEED=${seed}`);
    }
  }, 120_000);
});
