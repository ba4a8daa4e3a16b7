// The port of metrics is open to everybody who can connect: no client keeps others from their numbers.
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { type MetricsServer, serveMetrics } from '../../lib/prometheus/index.ts';
import { pause } from '../support/time.ts';

let server: MetricsServer | undefined;
const sockets: Socket[] = [];
afterEach(() => {
  for (const socket of sockets.splice(0)) socket.destroy();
  server?.close();
});

test('the queue is asked once a second, however many scrape', async () => {
  let asked = 0;
  server = await serveMetrics({ host: '127.0.0.1', port: 0 }, async () => {
    const value = ++asked;
    await pause(50);
    return [{ name: 'asked', type: 'gauge', help: 'How often.', samples: [{ labels: {}, value }] }];
  });
  const { url } = server;
  const scrape = async () => (await fetch(url)).text();
  const began = performance.now();
  const texts = await Promise.all(Array.from({ length: 60 }, scrape));
  const seconds = (performance.now() - began) / 1_000;
  expect(texts[0]).toContain('asked 1\n');
  expect(asked).toBeLessThanOrEqual(1 + seconds);
  await expect.poll(scrape).toContain(`asked ${asked + 1}\n`);
});

test('a failed scrape is an error, and the next one works', async () => {
  let fails = true;
  server = await serveMetrics({ host: '127.0.0.1', port: 0 }, async () => {
    if (fails) throw new Error('no queue');
    return [];
  });
  const first = await fetch(server.url);
  expect([first.status, await first.text()]).toEqual([503, 'no queue\n']);
  fails = false;
  expect((await fetch(server.url)).status).toBe(200);
});

test('connections without a request do not block others', async () => {
  server = await serveMetrics({ host: '127.0.0.1', port: 0 }, async () => []);
  const port = Number(new URL(server.url).port);
  for (let i = 0; i < 300; i++) {
    const socket = connect(port, '127.0.0.1');
    socket.on('error', () => {});
    sockets.push(socket);
    await once(socket, 'connect');
    if (i % 50 === 49) expect((await fetch(server.url)).status).toBe(200);
  }
});
