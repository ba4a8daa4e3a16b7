import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from './machine.ts';
import { childrenOf, isAlive, isThere, nameOf, sendSignal, signalLiving, stat } from './processes.ts';

test('tests send signals with the helpers of test/support only', () => {
  const bare = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
    .filter((path) => /\.(ts|mjs)$/.test(path) && !/^support\/processes(\.test)?\.ts$/.test(path))
    .filter((path) =>
      /process\.kill\((?!process\.pid,)/.test(readFileSync(join(root, 'test', path), 'utf8')),
    );
  expect(bare).toEqual([]);
});

test('a signal for a process that has ended is no error, unless it has to live', async () => {
  const child = spawn('sleep', ['60']);
  const pid = child.pid as number;
  signalLiving(pid, 'SIGCONT');
  expect([isThere(pid), isAlive(pid)]).toEqual([true, true]);
  expect(sendSignal(pid, 'SIGKILL')).toBe(true);
  await once(child, 'exit');
  expect(sendSignal(pid, 'SIGKILL')).toBe(false);
  expect(() => signalLiving(pid, 'SIGCONT')).toThrow(`process ${pid} ended before it got SIGCONT`);
  expect([isThere(pid), isAlive(pid), stat(pid), childrenOf(pid), nameOf(pid)]).toEqual([
    false,
    false,
    null,
    [],
    '',
  ]);
});

test.each([undefined, Number.NaN, 0, 1, -1, process.pid])('a signal is never sent to %s', (pid) => {
  expect(() => sendSignal(pid, 'SIGCONT')).toThrow('is no process');
});
