// Anybody can lock any number of bytes of the wait queue's file. The kernel goes through all of them for each question.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { command, Machine, NOBODY, output, python, whyNotNobody } from '../support/machine.ts';
import { whyNoTracing } from '../support/processes.ts';
import { fixture, Waiters } from './waiters.ts';

/** To take them, the kernel goes through all of them for each. */
const LOCKS = process.env.GPU_OWNER_SOAK ? 20_000 : 8_000;
/** Native code asks twice for each of 4,096 places at most. A claim looks at the queue twice, and asks some more for leases. */
const MAX_QUESTIONS = 2 * 2 * 4_096 + 200;
const CLAIM = ['run', '--no-wait', '--', 'echo', 'it ran'];
const WARNING = /warning: requests are served in no order, as a program .* has locked .*line\.lock\./g;

let machine: Machine;
let waiters: Waiters;
beforeEach(() => {
  machine = new Machine(2);
  waiters = new Waiters(machine);
});
afterEach(() => machine.close());

/** Makes the queue's file, and locks so much of it as another user. */
async function damage() {
  const first = await waiters.holder(2);
  const waiter = waiters.waiter([{ name: 'first' }]);
  await waiters.untilWaiting(1);
  first.release();
  await output(waiter, /got first/);
  // The last one first: the kernel looks for the place of each from the front.
  const ranges = Array.from({ length: LOCKS }, (_, i) => [String(2 * (LOCKS - i)), '1']).flat();
  const child = machine.start([python, fixture('locker.py'), waiters.file, 'ofd', ...ranges], {
    uid: NOBODY,
  });
  await output(child, /locked/);
  return child;
}

const noTracing = whyNoTracing();
const why = whyNotNobody();
describe.skipIf(why !== null)(
  `${LOCKS} locks of another user in the wait queue${why ? ` (${why})` : ''}`,
  () => {
    test('a claim goes on without the queue, says so once, and makes a bounded number of system calls', async () => {
      await damage();
      const file = join(machine.directory, 'calls');
      const strace = ['strace', '-f', '-qq', '-e', 'trace=fcntl', '-o', file];
      const { code, stdout, stderr } = await machine.run([
        ...(noTracing === null ? strace : []),
        ...[process.execPath, command, ...CLAIM],
      ]);
      expect([code, stdout]).toEqual([0, 'it ran\n']);
      expect(stderr.match(WARNING)).toHaveLength(1);
      if (noTracing !== null) return console.log(`calls not counted: ${noTracing}`);
      const calls = readFileSync(file, 'utf8').split('\n');
      expect(calls.filter((call) => call.includes('F_OFD_GETLK')).length).toBeLessThan(MAX_QUESTIONS);
    });
  },
);
