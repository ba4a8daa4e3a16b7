// The processes that stay for a command sleep while it runs: on a shared machine, other users need the processor.
import { readdirSync, readFileSync } from 'node:fs';
import { afterEach, expect, test } from 'vitest';
import { Machine, pause, until } from '../support/machine.ts';
import { nameOf, treeOf } from '../support/processes.ts';
import { settled } from '../support/time.ts';

let machine: Machine;
afterEach(() => machine.close());

test("a placeholder that is kept doesn't wake up, and neither does the keeper", async () => {
  machine = new Machine(1);
  const child = machine.startCommand(['run', '--placeholder', 'keep', '--', 'sleep', '30']);
  const front = child.pid as number;
  await until(() => treeOf(front).some((pid) => nameOf(pid) === 'sleep'));
  const look = () => treeOf(front).map((pid) => `${nameOf(pid)} ${wakeups(pid)}`);
  const before = await settled(look);
  expect(before.map((text) => text.split(' ')[0]).sort()).toEqual([
    'gpu-owner',
    'gpu-owner-group',
    'gpu-owner-keep',
    'gpu-owner-place',
    'sleep',
  ]);
  await pause(1_500);
  expect(look()).toEqual(before);
});

/** null: the process has ended, as the one that frees Node.js's memory does. */
function wakeups(pid: number): number | null {
  try {
    return readdirSync(`/proc/${pid}/task`)
      .map((thread) => readFileSync(`/proc/${pid}/task/${thread}/status`, 'utf8'))
      .reduce((sum, text) => sum + Number(/^voluntary_ctxt_switches:\s+(\d+)$/m.exec(text)?.[1]), 0);
  } catch {
    return null;
  }
}
