// Which Redis is used, and which is refused, with what remedy.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { onWarning } from '../../../lib/platform/system.ts';
import { parseAddress } from '../../../lib/sweeps/queue/bullmq/address.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import { freePort } from '../../support/ports.ts';
import { noRedis, queueName, RedisServer, SERVER } from '../../support/redis-server.ts';
import { until } from '../../support/time.ts';
import { all, takeFrom } from './conformance.ts';
import { plainTasks, spec } from './fixtures/tasks.ts';

/** Rights that the manual gives a user for workers alone. */
const RIGHTS =
  `~gpu-owner:${queueName('*')}:* ~gpu-owner-tasks:${queueName('*')}:* +@all -@dangerous +info`.split(' ');

const SETTINGS = `gpu-owner-tasks:${queueName('x')}:settings`;

const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-redis-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));
afterEach(() => vi.unstubAllEnvs());

describe('URLs', () => {
  test('have the project’s name, and never show a password', () => {
    expect(parseAddress('redis://user:pa%40ss@example.org', '/home/me/my sweep')).toMatchObject({
      url: 'redis://example.org:6379/0?project=my_sweep',
      name: queueName('my_sweep'),
      connection: { host: 'example.org', port: 6379, db: 0, username: 'user', password: 'pa@ss' },
      patience: 60_000,
    });
    const other = parseAddress('rediss://[::1]:7000/2?project=lab', '/x');
    expect(other).toMatchObject({
      name: queueName('lab'),
      connection: { host: '::1', port: 7000, db: 2, tls: {} },
    });
    const unix = parseAddress('redis+unix:///run/redis.sock?project=lab', '/x');
    expect(unix).toMatchObject({
      url: 'redis+unix:///run/redis.sock?project=lab',
      connection: { path: '/run/redis.sock' },
    });
  });

  test.each([
    ['redis://', /has no host/],
    ['redis+unix://run/redis.sock?project=a', /has no path after three slashes/],
    ['redis://:secret@h/0?nonsense=1', /unknown parameter/],
    ['redis://:secret@h?project=a:b', /wrong value of project/],
    ['redis://:secret@h/zero', /database that is not a number/],
    ['redis://:secret@h?patience=-1', /wrong value of patience/],
    ['redis://:secret@h?patience=0.0', /wrong value of patience/],
    ['redis://:secret@h/0?project=a#b', /has a '#'.*%23/],
    ['redis://:sec%ret@h', /without two digits after it/],
    ['redis://:secret@h:99999', /is not valid/],
    // A password with a '/' or '?' that isn't encoded seems to be a host and a port, and the rest a path.
    ['redis://a:12/secret@h', /write '\/' as %2F/],
    ['redis://a:12?secret@h', /'\?' as %3F/],
    ['redis://a:12?project=secret@h', /wrong value of project/],
    ['postgres://a:12/secret@h/db', /is not the URL of a queue/],
    ['rediss://:secret@h?ca=/nowhere', /\/nowhere.*can't be read/],
  ])('are refused, without showing the password: %s', async (url, message) => {
    const error = await openQueue(url, directory).catch((reason) => reason);
    expect(error.code).toBe('ERR_INVALID_ARGUMENT');
    expect(error.message).toMatch(message);
    expect(error.message).not.toMatch(/sec%?ret/);
  });
});

test('a Redis that is not there is told of at once', async () => {
  for (const url of ['redis://127.0.0.1:1', `redis+unix://${directory}/none.sock`]) {
    await expect(openQueue(url, directory)).rejects.toMatchObject({
      code: 'ERR_QUEUE',
      message: expect.stringMatching(/can't be reached.*Start Redis/),
    });
  }
});

describe.skipIf(noRedis !== null)(`servers${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  const servers: RedisServer[] = [];
  const start = async (...options: Parameters<typeof RedisServer.start>) => {
    const server = await RedisServer.start(...options);
    servers.push(server);
    return server;
  };
  afterEach(async () => {
    for (const server of servers.splice(0)) await server.remove();
  });
  const warnings: string[] = [];
  beforeAll(() => onWarning((message) => warnings.push(message)));

  async function works(url: string): Promise<void> {
    const queue = await openQueue(url, directory);
    try {
      await queue.enqueue([spec({ n: 0 })]);
      await queue.complete((await takeFrom(queue)).token, { accuracy: 1 });
      expect(await all(queue.tasks({ state: 'completed' }))).toHaveLength(1);
      expect(queue.url).not.toMatch(/s3cret/);
    } finally {
      await queue.close();
    }
  }

  test('are used with TLS and a password', async () => {
    const server = await start({ tls: true, password: 's3cret:/?#' });
    await works(server.url('project=tls'));
    const bare = server.url('project=tls').replace(/\/\/.*@/, '//');
    const missing = await openQueue(bare, directory).catch((error) => error);
    expect(missing).toMatchObject({ code: 'ERR_QUEUE' });
    expect(missing.message).toMatch(/requires a password.*GPU_OWNER_QUEUE_PASSWORD/);
    const wrong = await openQueue(bare.replace('//', '//:s3cret-no@'), directory).catch((error) => error);
    expect(wrong.message).toMatch(/refuses the password/);
    expect(wrong.message).not.toMatch(/s3cret/);
    vi.stubEnv('GPU_OWNER_QUEUE_PASSWORD', 's3cret:/?#');
    await works(bare.replace('project=tls', 'project=environment'));
    vi.unstubAllEnvs();
    const file = join(directory, 'password');
    writeFileSync(file, 's3cret:/?#\n');
    vi.stubEnv('GPU_OWNER_QUEUE_PASSWORD_FILE', file);
    await works(bare.replace('project=tls', 'project=file'));
    const untrusted = await openQueue(bare.replace(/&ca=.*/, ''), directory).catch((error) => error);
    expect(untrusted.message).toMatch(/can't be trusted.*\?ca=FILE/);
  });

  test('are used by a user with no more rights than the manual says', async () => {
    const server = await start();
    server.command('ACL', 'SETUSER', 'worker', 'on', '>s3cret', ...RIGHTS);
    await works(server.url('project=mnist').replace('//', '//worker:s3cret@'));
    const other = openQueue(
      server.url('project=other&share=yes').replace('//', '//worker:s3cret@'),
      directory,
    );
    await expect(other).rejects.toMatchObject({
      code: 'ERR_QUEUE',
      message: expect.stringMatching(/refuses/),
    });
  });

  test('are used on a socket', async () => {
    await works((await start({ unix: true })).url('project=socket'));
  });

  test('have several projects, which don’t see each other', async () => {
    const server = await start();
    await works(server.url('project=a'));
    await works(server.url('project=b'));
    expect(await openQueue(server.url('project=c'), directory, { create: false })).toBeNull();
    const a = await openQueue(server.url('project=a'), directory, { create: false });
    expect(await a?.counts()).toMatchObject({ completed: 1 });
    await a?.close();
  });

  test('that throw data away are refused, and there is a warning for those that keep none', async () => {
    const server = await start({
      settings: ['maxmemory 100mb', 'maxmemory-policy allkeys-lru', 'appendonly no'],
    });
    await expect(openQueue(server.url('project=x'), directory)).rejects.toMatchObject({
      code: 'ERR_QUEUE',
      message: expect.stringMatching(/maxmemory-policy noeviction/),
    });
    server.command('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
    await works(server.url('project=x'));
    expect(warnings.join('\n')).toMatch(/appendonly yes/);
  });

  test('without the database, or with keys of somebody else, are refused', async () => {
    const server = await start();
    await expect(openQueue(server.url('project=x').replace('/0?', '/99?'), directory)).rejects.toMatchObject({
      code: 'ERR_QUEUE',
      message: expect.stringMatching(/99\?project=x.*DB index is out of range/),
    });
    server.command('SET', SETTINGS, 'mine');
    await expect(openQueue(server.url('project=x'), directory)).rejects.toMatchObject({
      code: 'ERR_QUEUE',
      message: expect.stringMatching(/can't be used.*WRONGTYPE.*project=NAME/),
    });
  });

  test('with an unknown or another version of the queue are refused', async () => {
    const server = await start();
    const url = server.url('project=x');
    await works(url);
    for (const format of ['', 'v1', '3']) {
      server.command('HSET', SETTINGS, 'format', format);
      await expect(openQueue(url, directory), format).rejects.toMatchObject({
        code: 'ERR_QUEUE',
        message: expect.stringMatching(
          /x has version '.*', and this gpu-owner knows 1.*damaged.*project=NAME.*DEL.*start again/,
        ),
      });
    }
  });

  test('with a damaged record give an error that names it', async () => {
    const server = await start();
    const queue = await openQueue(server.url('project=x'), directory);
    await queue.enqueue([spec({ n: 0 })]);
    const key = server.command('--scan', '--pattern', 'gpu-owner:*:t-*').trim();
    for (const [field, value] of [
      ['progress', '{"attempts": 5}'],
      ['pb', '[]'],
      ['data', '{'],
    ]) {
      server.command('HSET', key, field as string, value as string);
      await expect(all(queue.tasks()), field).rejects.toMatchObject({
        code: 'ERR_QUEUE',
        message: expect.stringMatching(/damaged/),
      });
    }
    server.command('HSET', SETTINGS, 'pause', 'x');
    await expect(queue.paused()).rejects.toThrow(/record of the pause in the queue is damaged/);
    await queue.resume();
    expect(await queue.paused()).toBeNull();
    await queue.close();
  });

  test('don’t begin a queue anew of which somebody has removed a part', async () => {
    const server = await start();
    const url = server.url('project=x');
    const queue = await openQueue(url, directory);
    await queue.enqueue(plainTasks(2));
    await queue.close();
    server.command('DEL', SETTINGS);
    await expect(openQueue(url, directory)).rejects.toMatchObject({
      code: 'ERR_QUEUE',
      message: expect.stringMatching(/x has version ''.*damaged.*DEL.*start again/),
    });
    server.command('FLUSHALL');
    await works(url);
  });

  test('with other names for commands are refused', async () => {
    for (const command of ['INFO', 'EVALSHA']) {
      const server = await start({ settings: [`rename-command ${command} ""`] });
      await expect(openQueue(server.url('project=x'), directory), command).rejects.toMatchObject({
        code: 'ERR_QUEUE',
        message: expect.stringMatching(/rename-command/),
      });
    }
  });

  test('that only watch others are refused', async () => {
    const server = await start();
    const port = await freePort();
    const file = join(directory, 'sentinel.conf');
    writeFileSync(file, `port ${port}\nsentinel monitor main 127.0.0.1 ${server.port} 1\n`);
    const sentinel = spawn(SERVER, [file, '--sentinel'], { stdio: 'ignore' });
    try {
      await until(async () => {
        const said = await openQueue(`redis://127.0.0.1:${port}?project=x`, directory).catch(
          (error) => error.message,
        );
        return /is a sentinel.*Name a single server/.test(said);
      });
    } finally {
      sentinel.kill('SIGKILL');
    }
  });

  test('of a cluster are refused', async () => {
    const server = await start({ settings: ['cluster-enabled yes', 'cluster-config-file nodes.conf'] });
    await expect(openQueue(server.url('project=x').replace('/0?', '?'), directory)).rejects.toMatchObject({
      code: 'ERR_QUEUE',
      message: expect.stringMatching(/is a cluster/),
    });
  });
});
