import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { HeldProcess } from '../../lib/enforce/held-process.ts';

const ROUNDS = process.env.GPU_OWNER_SOAK ? 10_000 : 50;
const LAST_PID = '/proc/sys/kernel/ns_last_pid';

function whyNoReuse(): string | null {
  try {
    writeFileSync(LAST_PID, String(process.pid), { flag: 'r+' });
    return null;
  } catch {
    return `needs root, to write to ${LAST_PID}`;
  }
}

const start = (): ChildProcess => spawn('sleep', ['1000'], { stdio: 'ignore' });

async function end(child: ChildProcess): Promise<void> {
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
}

const noReuse = whyNoReuse();

test.skipIf(noReuse !== null)(
  `a process is held, and not its number, in ${ROUNDS} rounds${noReuse === null ? '' : `: ${noReuse}`}`,
  { timeout: ROUNDS * 2_000 },
  async () => {
    for (let reused = 0; reused < ROUNDS; ) {
      const first = start();
      const held = HeldProcess.hold(first.pid as number) as HeldProcess;
      expect(held.isAlive).toBe(true);
      await end(first);
      writeFileSync(LAST_PID, String(held.pid - 1), { flag: 'r+' });
      const second = start();
      // Another process of the machine may have been quicker.
      if (second.pid === held.pid) {
        reused++;
        expect(held.isAlive).toBe(false);
        expect(held.signal(9)).toBe(-3);
        const other = HeldProcess.hold(held.pid) as HeldProcess;
        expect(other.isAlive).toBe(true);
        other.release();
        expect([second.exitCode, second.signalCode]).toEqual([null, null]);
      }
      held.release();
      await end(second);
    }
  },
);

test('a process that has ended can’t be held', async () => {
  const child = start();
  await end(child);
  expect(HeldProcess.hold(child.pid as number)).toBeNull();
});
