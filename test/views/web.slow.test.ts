// `web` as programs meet it: its API, who may ask, and what many viewers cost.
import { once } from 'node:events';
import { chmodSync, chownSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { SLOT_MS } from '../../lib/views/web/day.ts';
import type { GPUDay, StreamLine } from '../../lib/views/web/shapes.ts';
import { Jobs } from '../jobs/background.ts';
import { Machine, output, pause, root, until } from '../support/machine.ts';
import { connectionsTo } from '../support/ports.ts';
import { soakTest, timeoutMs, withTimeouts } from '../support/time.ts';
import { type WebResponse, WebServer } from '../support/web.ts';

let machine: Machine;
/** How many connections keep nobody out. */
const MANY = process.env.GPU_OWNER_SOAK ? 10_000 : 1_000;
const sockets: Socket[] = [];
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  await new Jobs(machine).end();
  await machine.close();
});

/** A machine with a lease, a job that waits, and a process without a claim. */
async function fill(): Promise<void> {
  const jobs = new Jobs(machine);
  await jobs.submit([
    '-n',
    '2',
    '--name',
    'train',
    '--note',
    'seed 7',
    '--for',
    '2h',
    '--',
    'sh',
    '-c',
    'sleep 1000',
  ]);
  await jobs.reach(1, 'running');
  const occupant = machine.startCommand(['simulate', 'occupy', '3', '--name', 'python']);
  await output(occupant, /ready/);
  await jobs.submit(['-n', '4', '--name', 'large', 'sleep', '1000']);
  await until(async () => (await jobs.find(2)).position === 1);
}

describe('the API', () => {
  test('answers as status, queue, jobs and metrics do', async () => {
    await fill();
    const server = await WebServer.start(machine);
    const printed = async (...words: string[]) => JSON.parse((await machine.runCommand(words)).stdout);
    // Readings go on meanwhile; those of idle time with each look.
    const text = (answer: unknown) => JSON.stringify(answer, (key, value) => (key === 'idle' ? null : value));
    const same = async (path: string, ...words: string[]) => {
      let [ours, theirs]: unknown[] = [];
      await until(
        async () => {
          [ours, theirs] = [(await server.get(path)).json, await printed(...words)];
          return text(ours) === text(theirs);
        },
        () => `${text(ours)} to be ${text(theirs)}`,
      );
    };
    await same('/api/v1/queue', 'queue', '--json');
    await same('/api/v1/jobs', 'jobs', '--json');
    await same('/api/v1/gpus', 'status', '--json');
    const lines: StreamLine[] = [];
    await server.watch((line) => lines.push(line) < 3);
    expect(lines).toHaveLength(3);
    expect(lines[0]?.machines[0]?.snapshot).toMatchObject({ waiting: 1, intruders: [{ name: 'python' }] });
    const usage = (await server.get('/api/v1/usage')).json;
    expect(usage.days).toHaveLength(30);
    expect(usage.users).toMatchObject([{ uid: process.geteuid?.(), gpuHours: { length: 30 } }]);
    const metrics = await server.get('/metrics');
    expect(metrics.headers['content-type']).toBe('text/plain; version=0.0.4; charset=utf-8');
    const names = (text: string) => text.match(/^# TYPE .*/gm)?.join('\n');
    // Two snapshots tell that a GPU is idle: they may lie between the two answers.
    let [ours, theirs] = ['', ''] as (string | undefined)[];
    await until(
      async () => {
        ours = names((await server.get('/metrics')).text);
        theirs = names((await machine.runCommand(['metrics'])).stdout);
        return ours !== undefined && ours === theirs;
      },
      () => `the same metrics: ${ours}\n\n${theirs}`,
    );
  });

  test('says with status 503 what is wrong with the driver, and goes on when it works again', async () => {
    machine.set('error=all:9');
    const server = await WebServer.start(machine, ['--interval', '200ms']);
    let answer: WebResponse | undefined;
    await until(async () => {
      answer = await server.get('/api/v1/gpus');
      return answer.status === 503;
    });
    expect(answer?.json.error.code).toMatch(/^ERR_/);
    machine.set('error=off');
    await until(async () => (await server.get('/api/v1/gpus')).status === 200);
  });

  test('has the last 24 hours of each GPU', async () => {
    const slot = () => Math.floor(Date.now() / SLOT_MS);
    const first = slot();
    const server = await WebServer.start(machine, ['--interval', '200ms']);
    machine.set('gpu=0', 'utilization=80');
    await output(machine.startCommand(['run', '-n1', '--', 'sh', '-c', 'echo runs; sleep 600']), /runs/);
    let history = (await server.get('/api/v1/history')).json;
    const last = () => history.machines[0].gpus.map(({ leasedPercent }: GPUDay) => leasedPercent.at(-1));
    await until(async () => {
      await server.get('/api/v1/gpus');
      history = (await server.get('/api/v1/history')).json;
      return last()[0] > 0;
    });
    expect(last().slice(1)).toEqual([0, 0, 0]);
    const [gpu] = history.machines[0].gpus;
    expect(gpu.utilizationPercent).toHaveLength(288);
    const unknown = 287 - (slot() - first); // one less for each slot that ended meanwhile
    expect(gpu.utilizationPercent.slice(0, unknown).every((each: unknown) => each === null)).toBe(true);
    expect(gpu.utilizationPercent[287]).toBeGreaterThan(0);
  });

  test("sends a job's log: its last part, and what follows until its end, however much; a reader that stalls is dropped", async () => {
    const go = join(machine.directory, 'go');
    const wait = `while [ ! -e ${go} ]; do sleep 0.05; done`;
    const jobs = new Jobs(machine);
    const fill = (bytes: number) => `head -c ${bytes} /dev/zero | tr '\\0' x`;
    await jobs.submit(['--', 'sh', '-c', `${fill(400_000)}; echo; ${wait}; ${fill(30_000_000)}; echo end`]);
    await jobs.submit(['--', 'sh', '-c', `printf '\\033[2Jfirst\n'; ${wait}; echo last`]);
    const env = withTimeouts({ stalledViewer: timeoutMs('stalledViewer', 3_000) });
    const server = await WebServer.start(machine, [], { env });
    const textOf = async (path: string) => (await server.get(`/api/v1/jobs/${path}`)).text;
    await until(async () => (await textOf('1/log')).endsWith('x\n'));
    expect((await textOf('1/log')).length).toBe(256 * 1024);
    await until(async () => (await textOf('2/log')) === '\u001b[2Jfirst\n');
    expect((await server.get('/api/v1/jobs/2/log')).headers['content-type']).toMatch(/^text\/plain/);
    const follow = (job: number, ...headers: string[]) => {
      const socket = connect(server.port, '127.0.0.1').pause();
      sockets.push(socket);
      const lines = [`GET /api/v1/jobs/${job}/log?follow=true HTTP/1.1`, 'Host: localhost', ...headers];
      socket.write([...lines, `Authorization: Bearer ${server.token}`, '', ''].join('\r\n'));
    };
    for (let i = 0; i < 18; i++) follow(1);
    const read = server.get('/api/v1/jobs/1/log?follow=true');
    const followed = server.get('/api/v1/jobs/2/log?follow=true');
    await until(async () => (await server.get('/api/v1/jobs/1/log')).status === 503);
    writeFileSync(go, '');
    expect((await followed).text).toBe('\u001b[2Jfirst\nlast\n');
    const { text } = await read;
    expect([text.length, text.slice(-5)]).toEqual([256 * 1024 + 30_000_004, 'xend\n']);
    await until(() => connectionsTo(server.port) === 0);
    expect(await jobs.wait(1)).toBe(0);
    rmSync(join(jobs.directoryOf(1), 'output'));
    for (const [path, why] of Object.entries({
      1: /ENOENT/,
      99: /no job/,
      x: /by its number/,
      'a:1': /number/,
    })) {
      const { status, json } = await server.get(`/api/v1/jobs/${path}/log`);
      expect([path, status, json.error.message]).toEqual([path, 404, expect.stringMatching(why)]);
    }
    expect(await server.get('/api/v1/jobs/2/log', { authorization: 'Bearer x' })).toMatchObject({
      status: 401,
    });
  });

  test('is read only', async () => {
    const server = await WebServer.start(machine);
    for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS']) {
      const { status, headers } = await server.get('/api/v1/gpus', {}, method);
      expect([method, status, headers.allow]).toEqual([method, 405, 'GET, HEAD']);
    }
    expect(await server.get('/api/v1/gpus', {}, 'HEAD')).toMatchObject({ status: 200, text: '' });
    expect(await server.get('/api/v1/other')).toMatchObject({ status: 404 });
    expect(await server.get('/../../package.json')).toMatchObject({ status: 404 });
  });
});

describe('access', () => {
  test('needs the token, in a header only', async () => {
    const server = await WebServer.start(machine);
    const wrong = [
      undefined,
      'Bearer ',
      'Bearer x',
      `Bearer ${server.token}x`,
      `Basic ${server.token}`,
      server.token,
    ];
    for (const path of ['/api/v1/gpus', '/api/v1/stream', '/metrics', '/api/v1/other']) {
      for (const authorization of wrong) {
        const { status, headers, json } = await server.get(path, { authorization });
        expect([status, headers['www-authenticate'], json.error.code]).toEqual([
          401,
          'Bearer',
          'wrong-token',
        ]);
      }
    }
    const cookie = `token=${server.token}`;
    expect(
      await server.get(`/api/v1/gpus?token=${server.token}`, { authorization: undefined, cookie }),
    ).toMatchObject({
      status: 401,
    });
  });

  test('is refused under a foreign Host and from a foreign Origin, whatever the token', async () => {
    const server = await WebServer.start(machine, ['--allow-host', 'gpus.example.org']);
    const status = async (headers: Record<string, string>, path = '/api/v1/gpus') =>
      (await server.get(path, headers)).status;
    const own = `127.0.0.1:${server.port}`;
    for (const host of [
      own,
      `localhost:${server.port}`,
      `[::1]:${server.port}`,
      'gpus.example.org',
      'GPUS.example.org:443',
    ])
      expect([host, await status({ host })]).toEqual([host, 200]);
    for (const host of [
      'evil.example',
      `evil.example:${server.port}`,
      'localhost.evil.example',
      '10.0.0.1',
    ]) {
      for (const path of ['/', '/api/v1/gpus', '/metrics'])
        expect([host, await status({ host }, path)]).toEqual([host, 403]);
    }
    expect(await status({ origin: `http://${own}` })).toBe(200);
    expect(await status({ origin: 'https://gpus.example.org' })).toBe(200);
    expect(await status({ host: 'gpus.example.org:8443', origin: 'https://gpus.example.org:8443' })).toBe(
      200,
    );
    expect(await status({ origin: 'https://gpus.example.org:8443' })).toBe(403);
    // Another port of this machine may be another user's server.
    for (const origin of [
      'null',
      'http://evil.example',
      `http://127.0.0.1:${server.port + 1}`,
      'http://127.0.0.1',
      'x',
    ])
      expect([origin, await status({ origin })]).toEqual([origin, 403]);
  });

  test('every answer has the security headers, and sets no cookie', async () => {
    const server = await WebServer.start(machine);
    const answers = [
      await server.get('/'),
      await server.get('/page.js'),
      await server.get('/api/v1/gpus'),
      await server.get('/nothing'),
      await server.get('/', { host: 'evil.example' }),
      await server.get('/api/v1/gpus', { authorization: 'Bearer x' }),
    ];
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 404, 403, 401]);
    for (const { headers } of answers) {
      expect(headers['content-security-policy']).toMatch(/^default-src 'none'; .*frame-ancestors 'none'/);
      expect(headers).toMatchObject({
        'x-content-type-options': 'nosniff',
        'referrer-policy': 'no-referrer',
        'cache-control': 'no-store',
      });
      expect(headers).not.toHaveProperty('set-cookie');
      expect(headers).not.toHaveProperty('access-control-allow-origin');
    }
  });

  test('other addresses need a token file, which nobody else may read', async () => {
    const file = join(machine.directory, 'token');
    const refused = async (...args: string[]) => {
      const { code, stderr } = await machine.runCommand(['web', ...args]);
      return `${code}: ${stderr}`;
    };
    expect(await refused('--listen', '0.0.0.0:0')).toMatch(/^64: .*--token-file FILE/);
    expect(await refused('--token-file', file)).toMatch(/^78: .*ENOENT/);
    writeFileSync(file, 'short\n', { mode: 0o600 });
    expect(await refused('--token-file', file)).toMatch(/^78: .*needs 16 or more/);
    writeFileSync(file, 'blanks can not be in a header\n');
    expect(await refused('--token-file', file)).toMatch(/^78: .*blanks/);
    const token = '0123456789abcdef0123456789abcdef';
    writeFileSync(file, `${token}\n`);
    chmodSync(file, 0o640);
    expect(await refused('--token-file', file)).toMatch(/^78: .*chmod 600/);
    if (process.getuid?.() === 0) {
      chmodSync(file, 0o600);
      chownSync(file, 1000, 1000);
      expect(await refused('--token-file', file)).toMatch(/^78: .*belongs to the user 1000/);
      chownSync(file, 0, 0);
    }
    expect(await refused('--allow-host', 'http://x/')).toMatch(/^64: .*not the name of a host/);
    chmodSync(file, 0o600);
    const server = await WebServer.start(machine, ['--listen', '0.0.0.0:0', '--token-file', file]);
    expect(server.url).not.toContain(token);
    const authorization = `Bearer ${token}`;
    expect(await server.get('/api/v1/gpus', { authorization })).toMatchObject({ status: 200 });
    expect(await server.get('/api/v1/gpus')).toMatchObject({ status: 401 });
  });
});

describe('many viewers', () => {
  const calls = async (): Promise<number> => {
    const { stdout } = await machine.runCommand(['simulate', 'show', '--json']);
    return Object.values(JSON.parse(stdout).calls as Record<string, number>).reduce(
      (sum, each) => sum + each,
      0,
    );
  };

  soakTest('50 cost no more looks at the driver than one, and nobody one per minute', async () => {
    machine.set('count=on');
    const server = await WebServer.start(machine, ['--interval', '250ms']);
    await until(async () => (await calls()) > 0);
    const start = await calls();
    const times = new Set<string>();
    let received = 0;
    const isOver = () => times.size >= 8;
    await Promise.all(
      Array.from({ length: 50 }, () =>
        server.watch((line) => {
          received++;
          times.add(line.machines[0]?.snapshot?.time ?? '');
          return !isOver();
        }),
      ),
    );
    const [all, looks] = [(await calls()) - start, times.size];
    expect(received).toBeGreaterThan(50 * 4);
    // The same number of looks for one viewer.
    await pause(750);
    const rest = await calls();
    const alone = new Set<string>();
    await server.watch((line) => alone.add(line.machines[0]?.snapshot?.time ?? '').size < looks);
    const one = (await calls()) - rest;
    expect(all).toBeLessThan(one * 2);
    await until(async () => {
      const before = await calls();
      await pause(750);
      return (await calls()) === before;
    }, 'no more looks');
  });

  soakTest('a viewer that does not read is dropped, and others get every line', async () => {
    // The kernel buffers some MB for each viewer: a large machine fills that sooner.
    await machine.close();
    machine = new Machine(64);
    const env = withTimeouts({ stalledViewer: timeoutMs('stalledViewer', 1_000) });
    const server = await WebServer.start(machine, ['--interval', '100ms'], { env });
    const memory = () =>
      Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.child.pid}/status`, 'utf8'))?.[1]);
    const stalled = await Promise.all(
      Array.from({ length: 5 }, async () => {
        const socket = connect(server.port, '127.0.0.1');
        sockets.push(socket);
        await once(socket, 'connect');
        socket.pause();
        socket.write(
          `GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${server.token}\r\n\r\n`,
        );
        return socket;
      }),
    );
    let lines = 0;
    const reading = server.watch(() => {
      lines++;
      return stalled.some((socket) => !socket.destroyed);
    });
    const before = memory();
    await until(
      () => connectionsTo(server.port) <= 1,
      () => `${connectionsTo(server.port)} connections`,
      100_000,
    );
    expect(memory() - before).toBeLessThan(200 * 1024);
    expect(lines).toBeGreaterThan(50);
    for (const socket of stalled) socket.destroy();
    await reading;
  });

  test(`${MANY} connections that ask nothing, or read nothing, keep nobody out`, async () => {
    const server = await WebServer.start(machine);
    let lines = 0;
    const watching = { on: true };
    const viewer = server.watch(() => {
      lines++;
      return watching.on;
    });
    await until(() => lines > 0);
    for (let i = 0; i < MANY; i++) {
      const socket = connect(server.port, '127.0.0.1');
      socket.on('error', () => {});
      socket.pause();
      sockets.push(socket);
      await once(socket, 'connect');
      if (i % 2 === 0) socket.write('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n');
      if (i % (MANY / 5) === 0) expect((await server.get('/api/v1/gpus')).status).toBe(200);
    }
    const before = lines;
    await until(() => lines > before);
    watching.on = false;
    await viewer;
    expect(server.child.exitCode).toBe(null);
  });
});

test('the page is small, and names no other host', () => {
  const names = ['index.html', 'page.js', 'page.css', 'icon.svg'];
  const contents = names.map((name) => readFileSync(join(root, 'dist/web', name)));
  expect(contents.reduce((sum, content) => sum + gzipSync(content).length, 0)).toBeLessThan(40_000);
  expect(statSync(join(root, 'dist/web/licenses.txt')).size).toBeGreaterThan(0);
  for (const content of contents) {
    const hosts = [...content.toString().matchAll(/\bhttps?:\/\/([\w.-]+)/g)].map(([, host]) => host);
    expect(hosts.filter((host) => host !== 'www.w3.org')).toEqual([]); // names of XML namespaces
  }
});
