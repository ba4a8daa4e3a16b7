// `gpu-owner web` and requests that no browser sends.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { finished, Machine, until } from '../support/machine.ts';
import { WebServer } from '../support/web.ts';

let machine: Machine;
let server: WebServer;
beforeEach(async () => {
  machine = new Machine(2);
  server = await WebServer.start(machine);
});
afterEach(() => machine.close());

/** Everything that the server answers to these bytes, until it ends the connection. */
function send(bytes: string): Promise<string> {
  return new Promise((resolve) => {
    let answer = '';
    const socket = connect(server.port, '127.0.0.1', () => socket.write(bytes));
    socket.setEncoding('latin1').on('data', (more) => (answer += more));
    socket.on('error', () => {}); // the server may reset what it has answered
    socket.on('close', () => resolve(answer));
  });
}

const OWN = 'Host: 127.0.0.1';
const token = () => `Authorization: Bearer ${server.token}`;
const ask = (line: string, ...headers: string[]) =>
  send(`${[line, 'Connection: close', ...headers].join('\r\n')}\r\n\r\n`);
const statusOf = (answer: string) => Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1]);

test.each([
  ['two names, its own first', [OWN, 'Host: evil.example']],
  ['two names, its own last', ['Host: evil.example', OWN]],
  ['a name for DNS rebinding', ['Host: 127.0.0.1.nip.io']],
  ['a name below localhost', ['Host: evil.localhost']],
  ['a port that is no number', ['Host: 127.0.0.1:other']],
  ['a user in front', ['Host: evil@127.0.0.1']],
  ['an address as a number', ['Host: 0x7f000001']],
])('the server refuses a Host header with %s, whatever the token', async (_, headers) => {
  const answer = await ask('GET /api/v1/gpus HTTP/1.1', ...headers, token());
  expect(statusOf(answer)).toBe(403);
  expect(answer).toMatch(/foreign-host/);
  expect(answer).not.toMatch(/uuid/);
});

test.each(['/../../../etc/passwd', '/%2e%2e/%2e%2e/etc/passwd', '/__proto__', '/constructor', '//page.js'])(
  'the server has nothing at %s',
  async (path) => {
    expect(statusOf(await ask(`GET ${path} HTTP/1.1`, OWN, token()))).toBe(404);
  },
);

test('the server asks each request of a connection for the token', async () => {
  const first = `GET /api/v1/gpus HTTP/1.1\r\n${OWN}\r\n${token()}\r\n\r\n`;
  const second = `GET /api/v1/gpus HTTP/1.1\r\n${OWN}\r\nConnection: close\r\n\r\n`;
  const statuses = (await send(first + second)).match(/HTTP\/1\.1 \d+/g);
  expect(statuses).toEqual(['HTTP/1.1 200', 'HTTP/1.1 401']);
});

test('the server refuses two lengths or too long a header, closes slow connections, and goes on', async () => {
  const twoEnds = ['Content-Length: 5', 'Transfer-Encoding: chunked'];
  expect(statusOf(await ask('GET /api/v1/gpus HTTP/1.1', OWN, token(), ...twoEnds))).toBe(400);
  // The answer 431 may be lost: the connection is reset while bytes still come.
  expect(await ask('GET / HTTP/1.1', OWN, `X: ${'x'.repeat(10_000_000)}`)).not.toMatch(/^HTTP\/1\.1 (?!431)/);
  expect(statusOf(await send('\x16\x03\x01\x02\x00\x01\x00\r\n\r\n'))).toBe(400); // TLS
  const started = Date.now();
  await send('GET / HTTP/1.1\r\nHost: 1');
  expect(Date.now() - started).toBeLessThan(25_000);
  expect((await server.get('/api/v1/gpus')).status).toBe(200);
});

test('viewers get lines again after SIGSTOP, and an end after SIGTERM', async () => {
  let lines = 0;
  const socket = connect(server.port, '127.0.0.1');
  socket.on('data', (bytes) => {
    lines += bytes.toString('latin1').split('\n{').length - 1;
  });
  socket.on('error', () => {});
  const closed = once(socket, 'close');
  socket.write(`GET /api/v1/stream HTTP/1.1\r\n${OWN}\r\n${token()}\r\n\r\n`);
  await until(() => lines > 0);
  server.child.kill('SIGSTOP');
  await until(() => /^State:\s+T/m.test(readFileSync(`/proc/${server.child.pid}/status`, 'utf8')));
  const before = lines;
  server.child.kill('SIGCONT');
  await until(() => lines > before + 1);
  server.child.kill('SIGTERM');
  await closed;
  expect((await finished(server.child)).signal).toBe('SIGTERM');
});
