// Whole processes of two users come and go in any order, and are served as the model of the wait queue says.
import type { ChildProcess } from 'node:child_process';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { LockDirectory } from '../../lib/claims/locks/lock-directory.ts';
import { WaitQueue } from '../../lib/claims/queue/wait-queue.ts';
import type { Tag } from '../../lib/claims/rules/order.ts';
import { bootMilliseconds } from '../../lib/platform/system.ts';
import { TIMEOUTS } from '../../lib/platform/timeouts.ts';
import { FairModel } from '../support/fair-order.ts';
import { endHolder, RUN, UNTIL_CLOSED } from '../support/holders.ts';
import { Machine, NOBODY, until, whyNotNobody } from '../support/machine.ts';
import { Random } from '../support/random.ts';
import { withTimeouts } from '../support/time.ts';

const GPUS = 4;
const STEPS: [number, number, number] = process.env.GPU_OWNER_SOAK ? [1_000, 1_000, 1_000] : [8, 0, 10];
const SEED = Number(process.env.GPU_OWNER_TEST_SEED ?? 1);
const HOUR_MS = 3_600_000;
const USERS: Record<string, number> = { root: 0, nobody: NOBODY, alice: NOBODY, bob: NOBODY - 1, carol: 0 };
const noSecondUser = whyNotNobody();

let machine: Machine;
afterEach(() => {
  vi.unstubAllEnvs();
  return machine.close();
});

/** Nothing is known of how long jobs last. */
class ModelWithoutLedger extends FairModel {
  override expectedHours = () => 1 / 60;
}

/** Has all jobs count alike, however long a test's take. */
function spoilLedger(): void {
  const { lockDirectory } = machine;
  mkdirSync(lockDirectory, { recursive: true });
  const simulated = dirname(lockDirectory);
  for (const path of [dirname(simulated), simulated, lockDirectory]) chmodSync(path, 0o1777);
  writeFileSync(join(lockDirectory, 'usage'), '');
}

/** Jobs that run until their input is closed. */
class Lab {
  readonly children = new Map<string, ChildProcess>();
  readonly started = new Set<string>();

  begin(id: string, user: string, ...options: string[]): void {
    const uid = USERS[user.replace(/\d+$/, '')];
    const child = machine.startCommand(
      [...RUN, '--name', id, ...options, ...UNTIL_CLOSED],
      uid === undefined || uid === 0 ? {} : { uid, umask: '077' },
    );
    child.stdin?.on('error', () => {});
    child.stdout?.on('data', (text) => String(text).includes('started') && this.started.add(id));
    this.children.set(id, child);
  }

  child(id: string): ChildProcess {
    const child = this.children.get(id);
    if (child === undefined) throw new Error(`no job ${id}`);
    return child;
  }

  async end(id: string, signal?: 'SIGKILL'): Promise<void> {
    const child = this.child(id);
    if (signal !== undefined) child.kill(signal);
    await endHolder(child);
    this.started.delete(id);
    this.children.delete(id);
  }

  /** The names of those that wait, in order, with their tags. */
  queue(): { name: string; tag: Tag | null; count: number; isStopped: boolean }[] {
    const directory = LockDirectory.find(machine.lockDirectory, { lockDirectory: undefined });
    const queue = directory === null ? null : WaitQueue.open(directory);
    if (queue === null) return [];
    try {
      return [...queue.waiters(queue.order())].map(({ info, tag, count, isSuspended }) => ({
        name: info.name ?? '?',
        tag,
        count,
        isStopped: isSuspended,
      }));
    } finally {
      queue.close();
    }
  }
}

describe.skipIf(noSecondUser !== null)(`two users${noSecondUser === null ? '' : `: ${noSecondUser}`}`, () => {
  const LOADS: [steps: number, configuration: string, limits: Record<string, number>, hasTimes: boolean][] = [
    [STEPS[0], 'limits: { gpus: 2 }', { nobody: 2 }, false],
    [STEPS[1], '', {}, false],
    [STEPS[2], 'order: fair # and time limits', {}, true],
  ];
  test.each(LOADS.filter(([steps]) => steps > 0))(
    `are served as the model says, in %i steps (GPU_OWNER_TEST_SEED=${SEED}) %s`,
    {
      timeout: STEPS[2] * 20_000,
    },
    async (steps, configuration, limits, hasTimes) => {
      machine = new Machine(GPUS);
      machine.configure(`${configuration}\n`);
      spoilLedger();
      const random = new Random(SEED);
      const model = new ModelWithoutLedger(GPUS, 'fair', limits, TIMEOUTS.grace / HOUR_MS);
      const lab = new Lab();
      for (let step = 0; step < steps; step++) {
        const waiting = random.pick(model.queue)?.id;
        const running = random.pick([...model.running.keys()]);
        const act = random.integer(8);
        const at = bootMilliseconds() / HOUR_MS;
        let told = '';
        const isIdle = running === undefined || (act < 6 && waiting === undefined);
        if (act < 4 || isIdle) {
          const user = random.pick(['root', 'nobody']) as string;
          const most = limits[user] ?? GPUS;
          const count = random.integer(3) === 0 ? 1 + random.integer(most) : 1;
          const id = `${step}-${user}`;
          // No two end at the same time: then seconds would decide whether one ends before the other is needed.
          const whole = hasTimes ? random.pick([1, 2, 4, 8, undefined, undefined]) : undefined;
          const hours = whole === undefined ? undefined : whole + random.integer(1_800) / 3_600;
          const limit = hours === undefined ? [] : ['--for', `${Math.round(hours * 3_600)}s`];
          lab.begin(id, user, '-n', String(count), ...limit);
          await until(() => lab.started.has(id) || lab.queue().some(({ name }) => name === id), id);
          // When it joined is given, what its place is isn't.
          const tag = lab.queue().find(({ name }) => name === id)?.tag;
          const request = model.join(id, user, count, (tag?.joined ?? bootMilliseconds()) / HOUR_MS, hours);
          if (tag != null) expect(tag.start).toBe(request.start);
          told = `${id} asks for ${count} for ${hours} h`;
        } else if (act === 4 && waiting !== undefined) {
          await lab.end(waiting, 'SIGKILL');
          model.leave(waiting, at);
          told = `${waiting} is killed`;
        } else if (act === 5 && waiting !== undefined) {
          const { isSuspended } = model.waiting.find(({ id }) => id === waiting) ?? {};
          lab.child(waiting).kill(isSuspended ? 'SIGCONT' : 'SIGSTOP');
          // Before the others notice, any of those behind may be let in before it.
          const isStopped = () => lab.queue().find(({ name }) => name === waiting)?.isStopped ?? false;
          if (hasTimes) await until(() => isStopped() !== isSuspended);
          model.suspend(waiting, !isSuspended, at);
          told = `${waiting} is ${isSuspended ? 'resumed' : 'suspended'}`;
        } else if (running !== undefined) {
          await lab.end(running);
          model.finish(running, at);
          told = `${running} ends`;
        }
        await untilAsIn(model, lab, told);
      }
      for (const child of lab.children.values()) child.kill('SIGKILL');
    },
  );

  // The example of docs/fairness.md. Two hours have passed when all jobs that ran are ended.
  const [gpus, jobs, expected] = process.env.GPU_OWNER_SOAK
    ? [8, 100, { fair: { bob: 6, carol: 8, alice: 26 }, fifo: { bob: 24, carol: 26, alice: 24 } }]
    : [3, 13, { fair: { bob: 6, carol: 8, alice: 10 }, fifo: { bob: 8, carol: 10, alice: 8 } }];
  test.each(process.env.GPU_OWNER_SOAK ? (['fair', 'fifo'] as const) : (['fair'] as const))(
    'Alice’s many jobs, Bob’s one and Carol’s for all GPUs start at the hours of docs/fairness.md, with order: %s',
    { timeout: 300_000 },
    async (order) => {
      // However long a busy machine takes to start a job, no other passes it.
      vi.stubEnv('GPU_OWNER_TIMEOUTS', withTimeouts({ stall: 60_000 }).GPU_OWNER_TIMEOUTS);
      machine = new Machine(gpus);
      machine.configure(`order: ${order}\n`);
      spoilLedger();
      const lab = new Lab();
      const model = new ModelWithoutLedger(gpus, order);
      const now = () => bootMilliseconds() / HOUR_MS;
      const starts = new Map<string, number>();
      const submit = async (id: string, count = 1) => {
        lab.begin(id, id, '-n', String(count), '--for', '2h');
        model.join(id, id.replace(/\d+$/, ''), count, now(), 2);
        await untilAsIn(model, lab, `${id} asks for ${count}`);
      };
      for (let i = 1; i <= jobs; i++) await submit(`alice${i}`);
      for (let hour = 0; lab.children.size > 0; hour += 2) {
        for (const id of lab.started) starts.set(id.replace(/\d+$/, ''), hour);
        if (hour === 4) await submit('bob');
        if (hour === 6) await submit('carol', gpus);
        for (const id of [...lab.started]) {
          await lab.end(id);
          model.finish(id, now());
          await untilAsIn(model, lab, `${id} ends`);
        }
      }
      expect(Object.fromEntries(starts)).toEqual(expected[order]);
    },
  );
});

/** Waits until the same jobs run, and the same wait in the same order. */
async function untilAsIn(model: FairModel, lab: Lab, told: string): Promise<void> {
  const wanted = () => [[...model.running.keys()].sort(), model.queue.map(({ id }) => id)];
  const found = () => [[...lab.started].sort(), lab.queue().map(({ name }) => name)];
  await until(
    () => JSON.stringify(found()) === JSON.stringify(wanted()),
    () => `${told}: ${JSON.stringify(wanted())}, not ${JSON.stringify(found())}`,
  );
}
