// `exp manager` with workers of our own, and what both tell Prometheus.
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openQueue } from '../../lib/sweeps/queue/index.ts';
import { Experiment } from '../support/experiment.ts';
import { finished, output, until } from '../support/machine.ts';
import { pause } from '../support/time.ts';
import { KINDS, type QueueKind, SQLITE } from './queue-kinds.ts';

describe.each(KINDS)('on $name', (kind) => {
  describe.skipIf(kind.missing !== null)('', () => {
    let experiment: Experiment;
    let queue: Awaited<ReturnType<QueueKind['start']>>;
    beforeEach(async () => {
      queue = await kind.start();
      experiment = new Experiment(2, queue.env);
    });
    afterEach(async () => {
      await experiment.close();
      await queue.remove();
    });

    test('a manager without a port and workers make one row per task, though the manager is killed', async () => {
      const words = [
        'manager',
        '--no-listen',
        '--grid',
        'seed=1..6',
        ...experiment.train('--seconds', '0.3', 'x={seed}'),
      ];
      const first = experiment.start(words);
      await output(first, /Marked 0 tasks/);
      const workers = experiment.run(['worker', '--gpus', '2']);
      await experiment.untilStarted(2);
      first.kill('SIGKILL');
      const again = await experiment.run(words);
      expect(again.code).toBe(0);
      expect((await workers).code).toBe(0);
      expect(again.stdout).toMatch(/6 tasks: 6 completed/);
      expect(experiment.rows('results_grid')).toHaveLength(6);
      expect(experiment.starts()).toHaveLength(6);
    });

    test('a worker that waits for GPUs notices that the queue was removed', async () => {
      const holder = experiment.machine.startCommand(['run', '-n', '2', 'sh', '-c', 'echo held; sleep 60']);
      await output(holder, /held/);
      const manager = experiment.start(['manager', '--no-listen', '--grid', 'seed=1', ...experiment.train()]);
      await output(manager, /Marked 0 tasks/);
      const worker = experiment.start(['worker']);
      await output(worker, /Waiting for a GPU/);
      manager.kill('SIGKILL');
      if (queue.server === null) rmSync(join(experiment.project, '.gpu-owner'), { recursive: true });
      else queue.server.command('FLUSHALL');
      await output(worker, /the queue .* was removed .*(?:trying again|Start again)/);
      for (const child of [worker, worker, holder]) child.kill('SIGTERM');
    });

    // The rest asks nothing of the queue that test/sweeps/queue/contract doesn't show for both.
    if (kind !== SQLITE) return;

    test('--stay lets the manager go on when everything has ended, until it is told to end', async () => {
      const child = experiment.start([
        'manager',
        '--no-listen',
        '--stay',
        '--grid',
        'seed=1..1',
        ...experiment.train('x=1'),
      ]);
      const ended = finished(child);
      await output(child, /Marked 0 tasks/);
      const worker = await experiment.run(['worker']);
      expect(worker).toMatchObject({
        code: 0,
        stdout: expect.stringMatching(/ no task is left: 1 completed, 0 running, 0 waiting\n$/),
      });
      await until(() => /Progress: 1\/1/.test(experiment.log()));
      await pause(500);
      expect(child.exitCode).toBeNull();
      child.kill('SIGTERM');
      // Nothing was left to do.
      expect((await ended).code).toBe(0);
    });

    test('workers of a queue without tasks say who adds them', async () => {
      await (await openQueue(queue.env.GPU_OWNER_QUEUE ?? null, experiment.project)).close();
      const worker = await experiment.run(['worker', '--wait-for-tasks', '0']);
      expect(worker).toMatchObject({ code: 0, stderr: '' });
      expect(worker.stdout).toMatch(
        /^.* the queue has no tasks; `gpu-owner exp run` and `exp manager` add them\n$/,
      );
    });

    test('workers that start before there are tasks wait for them, and say so', async () => {
      const early = experiment.start(['worker']);
      const ended = finished(early);
      await output(early, /there is no task list yet \(.*\): waiting up to 1 min for gpu-owner exp run/);
      await (await openQueue(queue.env.GPU_OWNER_QUEUE ?? null, experiment.project)).close();
      const second = experiment.start(['worker']);
      const secondEnded = finished(second);
      await output(second, /the task list has no tasks yet \(.*\): waiting up to 1 min/);
      // Each of the two needs the other one's worker.
      const both = 'touch {seed}; until [ -e 1 ] && [ -e 2 ]; do sleep 0.05; done';
      const words = ['manager', '--no-listen', '--grid', 'seed=1..2', '--shell', '--', both];
      const manager = await experiment.run(words);
      expect(manager, manager.stdout + manager.stderr).toMatchObject({ code: 0 });
      for (const { code, stdout, stderr } of [await ended, await secondEnded]) {
        expect({ code, stderr }, stdout).toEqual({ code: 0, stderr: '' });
        expect(stdout).toMatch(/Assigned task/);
      }
      expect(experiment.rows('results_grid')).toHaveLength(2);
    });

    test('a worker for whose tasks nobody comes ends when its wait is over, or on Ctrl-C', async () => {
      const alone = await experiment.run(['worker', '--wait-for-tasks', '1s']);
      expect(alone, alone.stdout).toMatchObject({
        code: 69,
        stderr: expect.stringMatching(/^gpu-owner: there is no experiment in .*: start one with/),
      });
      // Where a look takes that long, there is no time left to wait.
      expect(alone.stdout).toMatch(/^(.* waiting up to 1 s for .*\n)?$/);
      const waiting = experiment.start(['worker']);
      const ended = finished(waiting);
      await output(waiting, /waiting up to 1 min/);
      waiting.kill('SIGINT');
      expect(await ended).toMatchObject({ code: 130, stderr: '' });
      expect(existsSync(join(experiment.project, '.gpu-owner'))).toBe(false);
    });

    test('tasks without a command are for workers over TCP, and other workers say what is missing', async () => {
      writeFileSync(join(experiment.project, 'sweep.yaml'), 'phase:\n  combinations:\n    - seed: [1]\n');
      const child = experiment.start(['manager', '--listen', '127.0.0.1:0', 'sweep.yaml']);
      const ended = finished(child);
      await output(child, /workers can ask/);
      const worker = await experiment.run(['worker']);
      expect(worker.code).not.toBe(0);
      expect(worker.stdout).toMatch(/the task has no command: .*gpu-owner exp run -- COMMAND/);
      child.kill('SIGTERM');
      expect((await ended).code).toBe(143);
      const none = await experiment.run(['manager', '--no-listen', 'sweep.yaml']);
      expect(none.code).toBe(78);
      expect(none.stderr).toMatch(/has no command to run/);
    });
  });
});
