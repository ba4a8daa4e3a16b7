// Hostile clients at the port of a manager disturb none that behave.
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { Authentication, parseAddresses } from '../../../lib/sweeps/protocol/access.ts';
import type { Request } from '../../../lib/sweeps/protocol/messages.ts';
import { type Limits, ProtocolServer } from '../../../lib/sweeps/protocol/server.ts';
import { pause } from '../../support/time.ts';

const STATUS = '{"type": "status"}';
const servers: ProtocolServer[] = [];
const sockets: Socket[] = [];
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  for (const server of servers.splice(0)) await server.close();
});

interface Serving {
  limits?: Partial<Limits>;
  trust?: string[];
  token?: string;
  host?: string;
  /** How long an answer takes, in ms. */
  delay?: number;
}

async function serve({ limits = {}, trust = [], token, host = '127.0.0.1', delay = 0 }: Serving = {}) {
  const requests: Request[] = [];
  const complaints: string[] = [];
  let undelivered = 0;
  const authentication = new Authentication({
    trust: parseAddresses(trust, '--trust'),
    token: token ?? null,
  });
  const server = new ProtocolServer({
    authentication,
    handle: async (request) => {
      requests.push(request);
      if (delay > 0) await pause(delay);
      return {
        text: '{"type":"ack"}',
        undelivered: async () => {
          undelivered++;
        },
      };
    },
    complain: (message) => complaints.push(message),
    limits,
  });
  servers.push(server);
  const { port } = await server.listen({ host, port: 0 });
  return { server, port, requests, complaints, undelivered: () => undelivered };
}

function open(port: number, host = '127.0.0.1', allowHalfOpen = false): Socket {
  const socket = connect({ port, host, allowHalfOpen });
  socket.on('error', () => {});
  sockets.push(socket);
  return socket;
}

/** All that comes until the other end closes. */
async function rest(socket: Socket): Promise<string> {
  let text = '';
  socket.setEncoding('utf8').on('data', (piece) => {
    text += piece;
  });
  await once(socket, 'close');
  return text;
}

async function ask(port: number, text: string | Buffer, host?: string): Promise<string> {
  const socket = open(port, host);
  socket.write(text);
  return rest(socket);
}

const ACK = '{"type":"ack"}';

test('40 requests at once are answered while 40 others are slow', async () => {
  const { port, requests } = await serve();
  const slow = Array.from({ length: 40 }, () => {
    const socket = open(port);
    socket.write('{"type": ');
    return socket;
  });
  const answers = await Promise.all(Array.from({ length: 40 }, () => ask(port, STATUS)));
  expect(answers.every((answer) => answer === ACK)).toBe(true);
  expect(requests).toHaveLength(40);
  const late = slow.map((socket) => rest(socket));
  for (const socket of slow) socket.write('"status"}');
  expect(new Set(await Promise.all(late))).toEqual(new Set([ACK]));
});

test('a request ends where its JSON does, however it is split', async () => {
  const { port, requests } = await serve();
  const text = `  {"type": "submit_result", "worker_id": "gpu0", "task_id": "a}\\"{\\\\", "result_data": {"ä€😀": [1.0, {"x": "]"}]}}`;
  const bytes = Buffer.from(text);
  for (const size of [1, 2, 3, 7]) {
    const socket = open(port);
    socket.setNoDelay(true);
    const answer = rest(socket);
    for (let at = 0; at < bytes.length; at += size) {
      socket.write(bytes.subarray(at, at + size));
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(await answer).toBe(ACK);
  }
  // A closed sending side is no hindrance.
  expect(await ask(port, `${STATUS}\n`)).toBe(ACK);
  const half = open(port, undefined, true);
  half.end(STATUS);
  expect(await rest(half)).toBe(ACK);
  expect(requests).toHaveLength(6);
  expect(requests[0]).toMatchObject({ task: 'a}"{\\', type: 'submit_result' });
});

test.each([
  ['no UTF-8', Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x7d]), /no complete JSON object within/],
  ['no JSON', '{"type": status}', /no complete JSON object within/],
  ['too deep', `{"a": ${'['.repeat(5_000)}}`, /no complete JSON object within/],
  ['garbage', 'GET / HTTP/1.1\r\n\r\n', /one JSON object/],
  ['a list', '[1, 2]', /one JSON object/],
  ['no type', '{}', /there is no request undefined; the known ones are request_task/],
  ['an unknown type', '{"type": "shutdown"}', /no request 'shutdown'/],
  ['a type that is none', '{"type": {"a": 1}}', /no request an object/],
  ['no worker', '{"type": "request_task"}', /worker_id must be a text/],
  ['a worker that is a list', '{"type": "request_task", "worker_id": []}', /worker_id must be a text/],
  ['a GPU that is a list', '{"type": "request_task", "worker_id": "a", "gpu_id": [0]}', /gpu_id must be/],
  [
    'a result that is a text',
    '{"type": "submit_result", "worker_id": "a", "task_id": "b", "result_data": "x"}',
    /result_data must be an object/,
  ],
  ['something of an inherited name', '{"__proto__": {"type": "status"}}', /there is no request/],
])('the answer to %s is an error, and nothing else', async (_, text, expected) => {
  const { port, requests } = await serve({ limits: { timeoutMs: 600 } });
  const answer = JSON.parse(await ask(port, text));
  expect(answer).toEqual({ type: 'error', message: expect.stringMatching(expected) });
  expect(requests).toEqual([]);
  expect(await ask(port, STATUS)).toBe(ACK);
});

test('connections are ended that are slow, huge, half-open, or only look', async () => {
  const { server: hasty, port: hastyPort } = await serve({ limits: { timeoutMs: 600 } });
  const slow = open(hastyPort);
  const drip = setInterval(() => slow.write(' '), 50);
  const silent = rest(open(hastyPort));
  // The others get their answers at once, but a busy machine may take longer than that.
  const { server, port } = await serve();
  const huge = open(port);
  huge.write(`{"a": "${'x'.repeat(2 * 1024 ** 2)}`);
  const cut = open(port, undefined, true);
  cut.end('{"type": "stat');
  const looking = open(port);
  looking.end();
  expect(JSON.parse(await rest(slow)).message).toMatch(/no complete JSON object within 0.6 s/);
  clearInterval(drip);
  expect(JSON.parse(await silent).message).toMatch(/no complete JSON object within/);
  expect(JSON.parse(await rest(huge)).message).toMatch(/at most 1048576 bytes/);
  expect(JSON.parse(await rest(cut)).message).toMatch(/ended before its JSON object did/);
  expect(await ask(port, STATUS)).toBe(ACK);
  // One that has got its answer and doesn't close.
  const idle = open(hastyPort, undefined, true);
  idle.write(STATUS);
  await once(idle.resume(), 'end');
  await expect.poll(() => hasty.connections).toBe(0);
  await expect.poll(() => server.connections).toBe(0);
});

test('connections are limited', async () => {
  const { port, complaints } = await serve({ limits: { connections: 3 } });
  const held = [open(port), open(port), open(port)];
  await Promise.all(held.map((socket) => once(socket, 'connect')));
  expect(JSON.parse(await ask(port, '')).message).toMatch(/too many connections/);
  expect(complaints.join()).toMatch(/too many connections/);
  held[0]?.destroy();
  await expect.poll(() => ask(port, STATUS)).toBe(ACK);
});

test('a client that left before its answer is reported', async () => {
  const { port, requests, undelivered } = await serve({ delay: 2_000 });
  const socket = open(port);
  socket.write(STATUS);
  await expect.poll(() => requests.length).toBe(1);
  socket.resetAndDestroy(); // long before the answer, on a busy machine, too
  await expect.poll(undelivered).toBe(1);
});

test('loopback needs no token if there is none; other addresses need a token or trust', async () => {
  const { port, requests } = await serve();
  expect(await ask(port, STATUS)).toBe(ACK);
  expect(requests).toHaveLength(1);
  const token = 'a secret that is long enough';
  const guarded = await serve({ token, host: '0.0.0.0' });
  expect(JSON.parse(await ask(guarded.port, STATUS)).message).toMatch(/127.0.0.1 .*--trust.*right token/);
  const wrong = JSON.stringify({ type: 'status', token: 'a secret that is long enougH' });
  expect(JSON.parse(await ask(guarded.port, wrong)).type).toBe('error');
  expect(await ask(guarded.port, JSON.stringify({ type: 'status', token }))).toBe(ACK);
  expect(guarded.requests).toHaveLength(1);
  const trusted = await serve({ token, trust: ['127.0.0.1'] });
  expect(await ask(trusted.port, STATUS)).toBe(ACK);
  const untrusting = new Authentication({ trust: parseAddresses([], ''), token: null });
  expect(() => untrusting.check({ host: '0.0.0.0', port: 1 })).toThrow(/--trust .*--token-file/);
  const trusting = new Authentication({
    trust: parseAddresses(['10.9.9.9,fd00:0::1'], ''),
    token: null,
  });
  expect(trusting.refusalOf('10.9.9.9')).toBeNull();
  expect(trusting.refusalOf('::ffff:10.9.9.9')).toBeNull();
  expect(trusting.refusalOf('fd00::1')).toBeNull();
  expect(trusting.refusalOf('10.9.9.8')).toMatch(/not among the trusted/);
});

test('IPv6 works, and IPv4 on a socket for both', async (context) => {
  let served: Awaited<ReturnType<typeof serve>>;
  try {
    served = await serve({ host: '::1' });
  } catch {
    return context.skip('there is no IPv6 here');
  }
  expect(await ask(served.port, STATUS, '::1')).toBe(ACK);
  const both = await serve({ host: '::', trust: ['192.0.2.1'] });
  expect(await ask(both.port, STATUS, '127.0.0.1')).toBe(ACK);
  expect(await ask(both.port, STATUS, '::1')).toBe(ACK);
});
