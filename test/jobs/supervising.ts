// A lease and a log of this process's own, for commands under its supervision.
import { closeSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach } from 'vitest';
import type { Lease } from '../../lib/claims/locks/lease.ts';
import type { SupervisedTask } from '../../lib/jobs/keeper.ts';
import { type Outcome, type Supervised, supervise } from '../../lib/jobs/supervised-process.ts';
import { EXCLUSIVE, native, OFD } from '../../lib/native.ts';
import { python, until, workspace } from '../support/keeper.ts';
import { childrenOf, isAlive, nameOf } from '../support/processes.ts';

export type Task = Supervised & {
  directory: string;
  lease: string;
  log(): string;
  outcome: Outcome | null;
};

const open: number[] = [];
let running: Supervised[] = [];

export function task(
  words: readonly string[] | ((directory: string) => readonly string[]),
  {
    grace = 200,
    env = process.env,
    descriptors = [] as number[],
    cwd = '/',
    deadline = null as SupervisedTask['deadline'],
  } = {},
): Task {
  const { directory, leases } = workspace();
  const lease = leases[0] as string;
  const descriptor = openSync(lease, 'r+');
  native().lockTry(descriptor, OFD, EXCLUSIVE, 0, 1);
  const path = join(directory, 'log');
  const output = openSync(path, 'a');
  open.push(descriptor, output);
  const supervised = supervise({
    words: typeof words === 'function' ? words(directory) : words,
    env,
    directory: cwd,
    output,
    claim: {
      gpus: [],
      leases: [
        {
          descriptor,
          enclosingDescriptors: [],
          paths: { own: lease, enclosing: [] },
          record: { pid: process.pid },
        } as unknown as Lease,
      ],
      marks: [],
      jobFile: null,
    },
    descriptors,
    title: 'a test',
    grace,
    deadline,
  });
  running.push(supervised);
  const more = { directory, lease, log: () => readFileSync(path, 'utf8'), outcome: null };
  const result: Task = Object.assign(supervised, more);
  void supervised.ended.then((outcome) => {
    result.outcome = outcome;
  });
  return result;
}

/** Python in the words of a test. */
export function script(text: string, ...args: string[]): string[] {
  return [python, '-c', text, ...args];
}

/** The processes of the one task that is under way: this process's children are watchdogs. That of an earlier task may still be there. */
export async function chain(): Promise<{ watchdog: number; keeper: number; command: number }> {
  const find = () =>
    childrenOf(process.pid)
      .filter((pid) => nameOf(pid) === 'gpu-owner-guard')
      .flatMap((watchdog) => childrenOf(watchdog).map((keeper) => ({ watchdog, keeper })))
      .flatMap((both) => childrenOf(both.keeper).map((command) => ({ ...both, command })))
      .filter(({ command }) => isAlive(command));
  let found: ReturnType<typeof find>[0] | undefined;
  await until(
    () => {
      [found] = find();
      return found !== undefined;
    },
    () => `a watchdog, a keeper and a command, among ${childrenOf(process.pid).map(nameOf)}`,
  );
  return found as NonNullable<typeof found>;
}

afterEach(async () => {
  for (const each of running) each.terminate(0);
  await Promise.all(running.map(({ ended }) => ended));
  running = [];
  for (const descriptor of open.splice(0)) closeSync(descriptor);
});
