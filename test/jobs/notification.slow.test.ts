// Notifications of a job by a command or a webhook, without a job's own processes, which notified-jobs.slow.test.ts has.
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo, Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { LockDirectory } from '../../lib/claims/index.ts';
import { writeBlock } from '../../lib/jobs/job-record.ts';
import { JobStore } from '../../lib/jobs/job-store.ts';
import { LIMITS, notifyOfCancelled, notifyOfJob, startNotifier } from '../../lib/jobs/notification.ts';
import { command as gpuOwner } from '../support/machine.ts';
import { isAlive, sendSignal } from '../support/processes.ts';
import { until } from '../support/time.ts';

const ID = 1;
const SECRET = 'services/T0/B0/secret-of-the-webhook';

let base: string;
let directory: string;
let told: string;
let time: number;
const before = { ...process.env };
const script = process.argv[1] as string;
const servers: Server[] = [];
const children: ChildProcess[] = [];

beforeEach(() => {
  base = mkdtempSync(join(tmpdir(), 'notification-'));
  directory = join(base, 'jobs/1');
  told = join(base, 'told');
  time = Date.now();
  mkdirSync(join(base, 'config/gpu-owner'), { recursive: true });
  process.argv[1] = gpuOwner; // as it is in the command
  process.env.XDG_CONFIG_HOME = join(base, 'config');
  process.env.GPU_OWNER_MACHINE_CONFIG = '/dev/null';
  makeJob();
});
afterEach(() => {
  process.argv[1] = script;
  for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
  Object.assign(process.env, before);
  for (const server of servers.splice(0)) {
    server.close();
    (server as ReturnType<typeof createServer>).closeAllConnections();
  }
  for (const child of children.splice(0)) child.kill('SIGKILL');
  rmSync(base, { recursive: true, force: true });
});

/** A job whose processes are gone: its byte isn't locked. */
function makeJob(): void {
  const locks = LockDirectory.open(join(base, 'locks'), {});
  const request = {
    start: ['submit'],
    name: 'train',
    note: null,
    command: 'python train.py',
    count: 1,
    directory: base,
    directoryBytes: null,
    umask: 0o022,
    outputPattern: null,
    submitted: time,
    after: [],
    limitMs: null,
    notify: true,
    resubmits: null,
    class: 'normal' as const,
    wanted: null,
  };
  const env = {
    ...process.env,
    OF_JOB: 'yes',
    CUDA_VISIBLE_DEVICES: '3',
    GPU_OWNER_JOB: 'token',
    GPU_OWNER_ROLE: 'part 3:4',
  };
  const entries = Object.entries(env).map(([key, value]) => `${key}=${value}\0`);
  const files = { arguments: new Uint8Array(), environment: Buffer.from(entries.join('')) };
  const { lock, file } = store().create(request, files, locks);
  store().announce(ID);
  closeSync(lock);
  closeSync(file);
}

function block(name: Parameters<typeof writeBlock>[1], contents: object): void {
  const file = store().openFile(ID);
  expect(writeBlock(file, name, contents)).toBe(true);
  closeSync(file);
}

const started = () =>
  block('progress', { pid: 1, started: time - 90_000, gpus: [{ index: 1, uuid: 'GPU-1' }] });
const ended = (exitCode: number) =>
  block('end', { keeper: 1, front: 1, pid: 1, exitCode, ended: time, cancelled: false });

function configure(text: string, mode = 0o600): void {
  const path = join(base, 'config/gpu-owner/config.yaml');
  writeFileSync(path, text);
  chmodSync(path, mode);
}

/** A program that stands for notify-send and the like. */
function program(script: string): string {
  const path = join(base, 'program');
  writeFileSync(path, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  return path;
}

const log = () => readFileSync(join(directory, 'notifications'), 'utf8').replace(/^\S+ /gm, '');
const store = () => JobStore.around(directory);

type Answer = (request: IncomingMessage, response: ServerResponse, body: string) => void;

async function listen(server: Server): Promise<number> {
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return (server.address() as AddressInfo).port;
}

/** Answers with the body that came. */
function answering(answer: Answer) {
  return (request: IncomingMessage, response: ServerResponse) => {
    let body = '';
    request.setEncoding('utf8').on('data', (chunk) => (body += chunk));
    request.on('end', () => answer(request, response, body));
  };
}

/** For what hangs. */
const SHORT = { postMs: 300, commandMs: 300 };
/** For what hangs after it has done something. */
const LONGER = { ...SHORT, postMs: 1_000, commandMs: 3_000 };

describe('a command', () => {
  test('gets the job as JSON, and the usual in variables', async () => {
    const words = [
      program(`cat > ${told}.json; env > ${told}.env; pwd > ${told}.cwd; echo "$@" > ${told}`),
      'a b',
      '$HOME',
    ];
    configure(`notifyCommand: ${JSON.stringify(words)}\n`, 0o644);
    started();
    ended(3);
    await notifyOfJob(directory, 'ended');
    expect(readFileSync(told, 'utf8')).toBe('a b $HOME\n');
    expect(readFileSync(`${told}.cwd`, 'utf8')).toBe('/\n');
    const { event, text, host, job } = JSON.parse(readFileSync(`${told}.json`, 'utf8'));
    expect(event).toBe('failed');
    expect(text).toBe(`job 1 (train) failed with exit code 3 on ${host} after 1 min 30 s: python train.py`);
    expect(job).toMatchObject({ id: ID, name: 'train', state: 'failed', exitCode: 3, gpus: [{ index: 1 }] });
    const env = readFileSync(`${told}.env`, 'utf8').split('\n');
    expect(env).toEqual(
      expect.arrayContaining([
        'GPU_OWNER_EVENT=failed',
        `GPU_OWNER_TEXT=${text}`,
        'GPU_OWNER_JOB_ID=1',
        'GPU_OWNER_JOB_NAME=train',
        'GPU_OWNER_JOB_STATE=failed',
        'GPU_OWNER_JOB_EXIT_CODE=3',
        `GPU_OWNER_JOB_OUTPUT=${join(directory, 'output')}`,
      ]),
    );
    expect(log()).toBe(`failed: '${words[0]}' was notified\n`);
    expect(statSync(join(directory, 'notifications')).mode & 0o777).toBe(0o600);
  });

  test.each([
    ['fails', 'echo no such user >&2; exit 3', /was not notified: exit code 3: no such user/],
    ['is killed', 'kill -9 $$', /was not notified: ended by SIGKILL/],
    ['hangs', 'sleep 600', /was not notified: it took longer than 300 ms/, SHORT],
    ['reads nothing and closes its input', 'exec <&-; exit 0', /was notified/],
  ])('that %s harms nothing, and is logged', async (_, script, expected, limits = LIMITS) => {
    configure(`notifyCommand: [${program(script)}]`);
    ended(0);
    await notifyOfJob(directory, 'ended', limits);
    expect(log()).toMatch(expected);
  });

  test("that doesn't exist, or isn't executable, is logged", async () => {
    ended(0);
    for (const [word, code] of [
      ['/nonexistent/program', 'ENOENT'],
      ['/etc/passwd/program', 'ENOTDIR'],
      ['/etc/passwd', 'EACCES'],
    ]) {
      rmSync(join(directory, 'told-ended'), { force: true });
      configure(`notifyCommand: [${word}]`);
      await notifyOfJob(directory, 'ended');
      expect(log()).toContain(`completed: '${word}' was not notified: it can't be started (${code})\n`);
    }
  });

  test('is killed with its group, also if it ignores SIGTERM', async () => {
    configure(`notifyCommand: [${program(`trap '' TERM; sleep 600 & echo $$ $! > ${told}; wait; wait`)}]`);
    ended(0);
    await notifyOfJob(directory, 'ended', LONGER);
    expect(log()).toMatch(/it took longer than/);
    const pids = readFileSync(told, 'utf8').trim().split(' ').map(Number);
    expect(pids).toHaveLength(2);
    for (const pid of pids) await until(() => !isAlive(pid));
  });

  test('is not waited for in what it leaves running', async () => {
    configure(`notifyCommand: [${program(`sleep 600 & echo $! > ${told}`)}]`);
    ended(0);
    await notifyOfJob(directory, 'ended');
    expect(log()).toMatch(/was notified/);
    sendSignal(Number(readFileSync(told, 'utf8')), 'SIGKILL');
  });
});

describe('a webhook', () => {
  const tell = async (answer: Answer, limits = LIMITS) => {
    const requests: { headers: IncomingMessage['headers']; url: string; body: string }[] = [];
    const port = await listen(
      createServer(
        answering((request, response, body) => {
          requests.push({ headers: request.headers, url: request.url ?? '', body });
          answer(request, response, body);
        }),
      ),
    );
    configure(`notifyWebhook: http://127.0.0.1:${port}/${SECRET}?key=x\n`);
    started();
    ended(0);
    await notifyOfJob(directory, 'ended', limits);
    expect(log()).not.toContain('secret');
    return { requests, log: log().replaceAll(String(port), 'PORT') };
  };
  const status =
    (...codes: number[]): Answer =>
    (_, response) =>
      response.writeHead(codes.shift() ?? 200).end('x');

  test('gets a POST of the job as JSON', async () => {
    const { requests, log } = await tell(status(204));
    expect(requests).toHaveLength(1);
    const [{ headers, url, body } = expect.fail()] = requests;
    expect(url).toBe(`/${SECRET}?key=x`);
    expect(headers['content-type']).toBe('application/json');
    const message = JSON.parse(body);
    expect(Object.keys(message)).toEqual(['event', 'text', 'host', 'job']);
    expect(message).toMatchObject({ event: 'completed', job: { id: ID, exitCode: 0 } });
    expect(log).toBe('completed: 127.0.0.1:PORT was notified\n');
  });

  test('that hangs is given up', async () => {
    const { requests, log } = await tell(() => {}, SHORT);
    expect(requests).toHaveLength(1);
    expect(log).toMatch(/was not notified: no answer within .*\n$/);
  });

  test('that redirects is not followed, and one that refuses is logged', async () => {
    let others = 0;
    const other = await listen(createServer(() => others++));
    for (const code of [301, 404, 503]) {
      rmSync(join(directory, 'told-ended'), { force: true });
      const { requests, log } = await tell((_, response) =>
        response.writeHead(code, { location: `http://127.0.0.1:${other}/${SECRET}` }).end(),
      );
      expect(requests).toHaveLength(1);
      expect(log).toContain(`it answered ${code}${code === 301 ? ', a redirection' : ''}`);
    }
    expect(others).toBe(0);
  });

  test('that nobody answers is logged without its path', async () => {
    const server = createServer();
    const port = await listen(server);
    servers.pop();
    await new Promise((resolve) => server.close(resolve));
    configure(`notifyWebhook: http://user:hunter2@localhost:${port}/${SECRET}`);
    ended(0);
    await notifyOfJob(directory, 'ended');
    expect(log()).toMatch(/ECONNREFUSED.*\n$/);
    expect(log()).not.toMatch(/secret|hunter2/);
  });

  test('and a command are both told', async () => {
    const bodies: string[] = [];
    const port = await listen(
      createServer(
        answering((_, response, body) => {
          bodies.push(body);
          response.end();
        }),
      ),
    );
    configure(
      `notifyCommand: [${program(`cat > ${told}`)}]\nnotifyWebhook: http://localhost:${port}/${SECRET}`,
    );
    started();
    ended(0);
    await notifyOfJob(directory, 'ended');
    expect(bodies).toEqual([readFileSync(told, 'utf8').trimEnd()]);
  });
});

const openssl = (...words: string[]) => execFileSync('openssl', words, { cwd: base, stdio: 'ignore' });
const hasOpenSSL = spawnSync('openssl', ['version']).status === 0;

/** The notifier as it is started, in a process of its own. */
function notifier(event: 'started' | 'ended', env: NodeJS.ProcessEnv = {}): Promise<number | null> {
  const child = spawn(process.execPath, [gpuOwner, 'notify-job', directory, event], {
    env: { ...process.env, ...env },
    stdio: 'ignore',
  });
  children.push(child);
  return new Promise((resolve) => child.on('exit', resolve));
}

describe.skipIf(!hasOpenSSL)('a webhook with https', () => {
  const serve = async (bodies: string[]) => {
    openssl('req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', 'key', '-out', 'crt', '-days', '2', '-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'); // biome-ignore format: one command
    const options = { key: readFileSync(join(base, 'key')), cert: readFileSync(join(base, 'crt')) };
    const answer = answering((_, response, body) => {
      bodies.push(body);
      response.end();
    });
    const port = await listen(createSecureServer(options, answer) as unknown as Server);
    configure(`notifyWebhook: https://localhost:${port}/${SECRET}`);
    ended(0);
  };

  test('must have a certificate that can be verified, whatever the environment says', async () => {
    const bodies: string[] = [];
    await serve(bodies);
    process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';
    await notifyOfJob(directory, 'ended');
    expect(log()).toMatch(/was not notified: self-signed certificate\n$/);
    expect(bodies).toEqual([]);
  });

  test('may have one of an authority in NODE_EXTRA_CA_CERTS', async () => {
    const bodies: string[] = [];
    await serve(bodies);
    expect(await notifier('ended', { NODE_EXTRA_CA_CERTS: join(base, 'crt') })).toBe(0);
    expect(log()).toMatch(/was notified\n$/);
    expect(bodies).toHaveLength(1);
  });
});

describe('the notifier', () => {
  test('tells of the end once', async () => {
    configure(`notifyCommand: [${program(`echo "$GPU_OWNER_EVENT" >> ${told}`)}]`);
    started();
    startNotifier(store(), ID, 'started');
    await until(() => existsSync(told));
    ended(0);
    await Promise.all([notifyOfJob(directory, 'ended'), notifyOfJob(directory, 'ended'), notifier('ended')]);
    await until(() => log().split('\n').length === 3);
    expect(readFileSync(told, 'utf8')).toBe('started\ncompleted\n');
  });

  test('tells nothing of a job that goes on, or is unknown', async () => {
    configure(`notifyCommand: [${program(`touch ${told}`)}]`);
    rmSync(join(directory, 'job'));
    await notifyOfJob(directory, 'ended');
    await notifyOfJob(join(base, 'jobs/2'), 'ended');
    expect(existsSync(told)).toBe(false);
    expect(readdirSync(directory).sort()).toEqual(['arguments', 'environment']);
  });

  test("has the job's environment without what is the job's alone, and nothing of what it prints reaches anybody", async () => {
    configure(`notifyCommand: [${program(`env > ${told}.part; mv ${told}.part ${told}`)}]`);
    block('cancellation', { at: Date.now(), reason: null });
    notifyOfCancelled(store(), ID);
    await until(() => existsSync(told));
    await until(() => existsSync(join(directory, 'notifications'))); // the last file that the notifier makes
    const env = readFileSync(told, 'utf8');
    expect(env).toMatch(/^OF_JOB=yes$/m);
    expect(env).toMatch(/^GPU_OWNER_EVENT=cancelled$/m);
    expect(env).not.toMatch(/^(?:CUDA_VISIBLE_DEVICES|GPU_OWNER_JOB|GPU_OWNER_ROLE|NODE_OPTIONS)=/m);
  });

  test('logs that the configuration has a mistake', async () => {
    configure(`notifyWebhook: https://hooks.example.com/${SECRET}`, 0o644);
    ended(0);
    await notifyOfJob(directory, 'ended');
    expect(log()).toMatch(/^completed: .*config\.yaml: others may read it.*chmod 600\n$/);
    expect(log()).not.toContain(SECRET);
  });
});
