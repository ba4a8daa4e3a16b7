// `exp manager` from outside, with workers as the original system has them: whole processes, real signals.
import type { ChildProcess } from 'node:child_process';
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { cancelTasks, withQueue } from '../../lib/sweeps/index.ts';
import { Experiment } from '../support/experiment.ts';
import {
  type Finished,
  finished,
  NOBODY,
  output,
  pause,
  python,
  until,
  whyNotNobody,
} from '../support/machine.ts';
import { freePort } from '../support/ports.ts';
import { queueName, type RedisServer } from '../support/redis-server.ts';
import { soakTest } from '../support/time.ts';
import { KINDS, type QueueKind, REDIS, SQLITE } from './queue-kinds.ts';

const WORKER = join(import.meta.dirname, 'fixtures/original_worker.py');
const SNIPPET = join(import.meta.dirname, 'fixtures/status_snippet.py');

let experiment: Experiment;
let port: number;
let queue: Awaited<ReturnType<QueueKind['start']>>;

/** Before each test: an experiment with its queue there. */
function prepare(kind: QueueKind): void {
  beforeEach(async () => {
    queue = await kind.start();
    experiment = new Experiment(0, queue.env);
    port = await freePort();
    sweep('[1.0, 2]', '[42, 43, 44]');
  });
  afterEach(async () => {
    await experiment.close();
    await queue.remove();
  });
}

/** A configuration as the original has it: without a command. */
function sweep(widths: string, seeds: string): void {
  mkdirSync(join(experiment.project, 'configs'), { recursive: true });
  writeFileSync(
    join(experiment.project, 'configs/config_exp1.yaml'),
    `defaults:
  dataset: mnist
  output_dir: results_{dataset}
exp1_vary_width:
  combinations:
    - width_factor: ${widths}
    - seed: ${seeds}
`,
  );
}

function manager(...args: string[]): ChildProcess {
  return experiment.start(['manager', '--listen', String(port), ...args]);
}

function worker(id: string, ...args: string[]): Promise<Finished> {
  const words = [python, WORKER, 'localhost', String(port), id, ...args];
  return finished(experiment.machine.start(words, { cwd: experiment.project }));
}

/** Asks as a worker does: it doesn't close its end before it has the answer. */
function ask(request: object): Promise<Record<string, unknown>> {
  return new Promise((resolve, reject) => {
    let answer = '';
    const socket = connect(port, '127.0.0.1', () => socket.write(JSON.stringify(request)));
    socket.setEncoding('utf8').on('data', (text) => (answer += text));
    socket.on('error', reject).on('end', () => resolve(JSON.parse(answer)));
  });
}

const names = (directory = 'results_mnist') =>
  experiment
    .rows(directory)
    .map((row) => row.split(',')[0] as string)
    .sort();

type TableRow = Record<string, string>;

/** The table of the only output directory. */
function table(): TableRow[] {
  const path = join(experiment.project, 'results_mnist/final_results.csv');
  const [header = [], ...rows] = readFileSync(path, 'utf8')
    .trim()
    .split('\n')
    .map((line) => line.split(','));
  return rows.map((row) => Object.fromEntries(header.map((name, at) => [name, row[at] ?? ''])));
}

describe('a colleague who may read the project, and no more', () => {
  prepare(SQLITE);

  test.skipIf(whyNotNobody() !== null)(
    `is told who may look at its queue: ${whyNotNobody() ?? 'as nobody'}`,
    async () => {
      for (const path of [experiment.machine.directory, experiment.project]) chmodSync(path, 0o755);
      const child = manager('--stay');
      const ended = finished(child);
      await output(child, /workers can ask/);
      const refused = await experiment.run(['status'], { uid: NOBODY });
      expect(refused.code).toBe(69);
      expect(refused.stderr).toMatch(/permission denied.*Only users who may write to a queue/);
      child.kill('SIGTERM');
      await ended;
    },
  );
});

describe.each(KINDS)('on $name', (kind) => {
  describe.skipIf(kind.missing !== null)('', () => {
    prepare(kind);

    test('a manager that was killed with SIGKILL goes on when it is started again; tasks stay with their workers', async () => {
      const child = manager();
      await output(child, /workers can ask/);
      const workers = ['gpu0', 'gpu1', 'gpu2'].map((id) => worker(id, '--wait-for', 'go'));
      await experiment.untilStarted(3);
      child.kill('SIGKILL');
      await finished(child, 'exit');
      writeFileSync(join(experiment.project, 'go'), '');
      const again = manager();
      const ended = finished(again);
      expect((await Promise.all(workers)).map(({ code }) => code)).toEqual([0, 0, 0]);
      const { code } = await ended;
      expect(code).toBe(0);
      expect(names()).toHaveLength(6);
      expect(new Set(names()).size).toBe(6);
      // None of them was started twice.
      expect(experiment.starts()).toHaveLength(6);
    });

    // The rest asks nothing of the queue that test/sweeps/queue/contract doesn't show for both.
    if (kind !== SQLITE) return;

    test('the original’s quick start makes one row per task, with a manager and three workers', async () => {
      const child = manager();
      const ended = finished(child);
      await output(child, /workers can ask for tasks at 127\.0\.0\.1:\d+/);
      const snippet = await experiment.machine.run([python, SNIPPET, String(port)]);
      expect(snippet.stdout).toBe(
        "{'total': 6, 'pending': 6, 'assigned': 0, 'complete': 0, 'failed': 0, 'progress': '0/6 (0.0%)'}\n",
      );
      const workers = await Promise.all(['gpu0', 'gpu1', 'gpu2'].map((id) => worker(id, '--seconds', '0.2')));
      for (const { code, stdout } of workers) {
        expect(code).toBe(0);
        expect(stdout).toMatch(/no task is left/);
      }
      const { code, stdout, stderr } = await ended;
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expect(stdout).toMatch(/6 tasks: 6 completed/);
      expect(names()).toEqual([42, 43, 44, 42, 43, 44].map((seed, i) => `exp1_vary_width_${i}_${seed}`));
      expect(experiment.rows('results_mnist')).toContain('exp1_vary_width_0_42,mnist,1.0,42,0.25,NaN');
      const log = experiment.log();
      for (const pattern of [
        /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d Generated 6 total tasks$/m,
        / Marked 0 tasks as already completed$/m,
        / Assigned task exp1_vary_width_0_42 to gpu\d$/m,
        / Task exp1_vary_width_0_42 completed by gpu\d$/m,
        / Progress: 6\/6 \(100\.0%\)$/m,
      ]) {
        expect(log).toMatch(pattern);
      }
      expect(log.match(/Assigned task/g)).toHaveLength(6);
      expect(log.match(/completed by/g)).toHaveLength(6);
    });

    test('the second of two managers watches, and takes over port and tables when the first is killed', async () => {
      const first = manager();
      await output(first, /workers can ask/);
      const second = manager();
      const said = finished(second);
      await output(second, /manages this queue[\s\S]*is in use, perhaps by the other manager/);
      const workers = ['gpu0', 'gpu1'].map((id) => worker(id, '--wait-for', 'go'));
      await experiment.untilStarted(2);
      first.kill('SIGKILL');
      await finished(first, 'exit');
      writeFileSync(join(experiment.project, 'go'), '');
      await Promise.all(workers);
      const { code, stdout } = await said;
      expect(code).toBe(0);
      expect(stdout).toMatch(/the other manager is gone: this process now writes the tables/);
      expect(new Set(names()).size).toBe(6);
      expect(names()).toHaveLength(6);
    });

    test('no row comes twice from workers that write their rows themselves', async () => {
      const child = manager();
      const ended = finished(child);
      await output(child, /workers can ask/);
      await worker('gpu0', '--csv', '--seconds', '0.2');
      expect((await ended).code).toBe(0);
      expect(experiment.rows('results_mnist')).toHaveLength(6);
      const again = await experiment.run(['manager', '--listen', String(port)]);
      expect(again.stdout).toMatch(/Marked 6 tasks as already completed/);
      expect(experiment.rows('results_mnist')).toHaveLength(6);
    });

    test('the log tells of workers whose results never come', async () => {
      const child = manager('--stay');
      const ended = finished(child);
      await output(child, /workers can ask/);
      expect((await worker('gpu0', '--lose-results')).stdout).toMatch(/Error submitting result/);
      await until(() => /6 \(100/.test(experiment.log()));
      expect(experiment.log()).toMatch(/Task exp1_vary_width_5_44 completed by gpu0$/m);
      const warnings = experiment.log().match(/ warning: gpu0 on \S+ completed \S+ without a result: .*/g);
      expect(warnings).toHaveLength(1);
      await expect.poll(() => names()).toHaveLength(6);
      child.kill('SIGINT');
      await ended;
    });

    test('a task that fails is started three times, and the reason is kept', async () => {
      const child = manager();
      const ended = finished(child);
      await output(child, /workers can ask/);
      await worker('gpu0', '--fail', 'exp1_vary_width_1_43');
      const { code, stdout } = await ended;
      expect(code).toBe(1);
      expect(stdout).toMatch(/failed: exp1_vary_width_1_43: CUDA error: out of memory/);
      expect(experiment.starts().filter((name) => name === 'exp1_vary_width_1_43')).toHaveLength(3);
      expect(names()).toHaveLength(5);
    });

    soakTest(
      'a task of a worker that died is noticed though nobody asks, and given out again; a late result counts if there is none yet',
      async () => {
        sweep('[1.0]', '[42]');
        // The second worker must keep the task meanwhile, also on a busy machine.
        const child = manager('--task-timeout', '8s');
        const ended = finished(child);
        await output(child, /workers can ask/);
        const about = { task_id: 'exp1_vary_width_0_42', worker_id: 'gpu0' };
        const request = { type: 'request_task', worker_id: 'gpu0', gpu_id: 0 };
        expect((await ask(request)).type).toBe('task');
        expect((await ask({ ...request, worker_id: 'gpu1' })).type).toBe('no_task');
        await until(() =>
          / Task exp1_vary_width_0_42 lost by gpu0: .*sent no message in time/.test(experiment.log()),
        );
        expect((await experiment.status()).counts).toMatchObject({ pending: 1, active: 0 });
        expect((await ask({ ...request, worker_id: 'gpu1' })).type).toBe('task');
        await until(() => /Assigned task exp1_vary_width_0_42 to gpu1/.test(experiment.log()));
        await ask({ type: 'submit_result', ...about, result_data: { accuracy: 0.9 } });
        expect(await ask({ type: 'task_complete', ...about })).toEqual({ type: 'ack' });
        // The answer was lost: saying it again changes nothing. The other one is too late.
        expect(await ask({ type: 'task_complete', ...about })).toEqual({ type: 'ack' });
        const late = await ask({ type: 'task_complete', ...about, worker_id: 'gpu1' });
        expect(late).toMatchObject({ type: 'error', message: expect.stringMatching(/no longer belongs/) });
        // The other one's was taken from it.
        await until(() => /Task exp1_vary_width_0_42 cancelled on gpu1/.test(experiment.log()));
        for (const worker_id of ['gpu0', 'gpu1']) await ask({ ...request, worker_id });
        expect((await ended).code).toBe(0);
        expect(experiment.rows('results_mnist')).toEqual(['exp1_vary_width_0_42,mnist,1.0,42,0.9']);
      },
    );

    test('workers over TCP obey pause and cancel, and keep a task when they ask for another', async () => {
      const child = manager();
      const ended = finished(child);
      await output(child, /workers can ask/);
      const request = { type: 'request_task', worker_id: 'gpu0', gpu_id: 0 };
      // biome-ignore lint/suspicious/noExplicitAny: answers are what this is about
      const id = async () => ((await ask(request)) as any).task.task_id;
      expect(await id()).toBe('exp1_vary_width_0_42');
      expect(await id()).toBe('exp1_vary_width_1_43');
      expect(await ask({ type: 'status' })).toMatchObject({ status: { pending: 4, assigned: 2 } });
      await withQueue({ directory: experiment.project, url: null }, async (tasks) => {
        await tasks.pause('person', 'for a while');
        expect(await ask({ ...request, worker_id: 'gpu1' })).toEqual({ type: 'no_task' });
        await tasks.resume();
        await cancelTasks(tasks, ['exp1_vary_width_1_43']);
      });
      const about = { task_id: 'exp1_vary_width_1_43', worker_id: 'gpu0' };
      const late = await ask({ type: 'task_complete', ...about });
      expect(late).toMatchObject({ type: 'error', message: expect.stringMatching(/cancelled/) });
      child.kill('SIGTERM');
      expect((await ended).code).toBe(143);
    });
  });
});

describe('wherever the queue is', () => {
  prepare(SQLITE);

  test('rows of older workers without a seed count for no task of several seeds, stay, and this is said', async () => {
    sweep('[1.0]', '[42, 101, 2024]');
    const child = manager();
    const ended = finished(child);
    await output(child, /workers can ask/);
    await Promise.all(['gpu0', 'gpu1'].map((id) => worker(id, '--older', '--seconds', '0.5')));
    const { code, stdout } = await ended;
    expect(code).toBe(0);
    expect(stdout).toMatch(
      /final_results\.csv:\d: this row (?:is not the result of a task: .* and no seed\.|fits several tasks)/,
    );
    expect(experiment.log()).toMatch(
      /without a result: .* the task's table has no row with all its parameters/,
    );
    const rows = table();
    const seeds = rows.map(({ seed = '' }) => seed).filter((seed) => seed !== '');
    expect(seeds.sort()).toEqual(['101', '2024', '42']);
    for (const { seed, test_accuracy } of rows) expect(Boolean(seed)).toBe(!test_accuracy);
  });

  test('workers on Windows ask over the network, and have their files on a disk of their own', async () => {
    const [address] = Object.values(networkInterfaces())
      .flatMap((each) => each ?? [])
      .filter(({ family, internal }) => family === 'IPv4' && !internal)
      .map((each) => each.address);
    if (address === undefined) throw new Error('this machine has no address but that of itself');
    const child = experiment.start(['manager', '--listen', `0.0.0.0:${port}`, '--trust', address]);
    const ended = finished(child);
    await output(child, /workers can ask/);
    const disk = join(experiment.machine.directory, 'disk-c');
    mkdirSync(disk);
    const workers = ['gpu0', 'gpu1'].map((id) =>
      finished(
        experiment.machine.start([python, WORKER, address, String(port), id, '--windows'], { cwd: disk }),
      ),
    );
    for (const { code, stdout } of await Promise.all(workers)) {
      expect(code, stdout).toBe(0);
      expect(stdout).not.toMatch(/error/i);
    }
    const { code, stdout } = await ended;
    expect(code, stdout).toBe(0);
    expect(stdout).not.toMatch(/WARN/);
    const log = String.raw`C:\experiments\results_mnist\worker.log`;
    expect(experiment.rows('results_mnist').sort()).toEqual(
      ['1.0,42,0.25', '1.0,43,0.25', '1.0,44,0.25', '2,42,0.5', '2,43,0.5', '2,44,0.5'].map(
        (row, at) => `exp1_vary_width_${at}_${row.split(',')[1]},mnist,${row},NaN,${log}`,
      ),
    );
    expect(readdirSync(disk)).toEqual(['starts.txt']);
  });

  test('a port that another program has, and ports for everybody, are refused with the remedy', async () => {
    const blocker = createServer().listen(port, '127.0.0.1');
    const busy = await experiment.run(['manager', '--listen', String(port)]);
    blocker.close();
    expect(busy.code).toBe(64);
    expect(busy.stderr).toMatch(/another program listens on 127\.0\.0\.1:\d+ .*--listen PORT/);
    // Nothing was changed by that.
    expect(busy.stdout).not.toMatch(/Generated/);
    expect((await experiment.status()).total).toBe(0);
    const open = await experiment.run(['manager', '--listen', '0.0.0.0:0']);
    expect(open.code).toBe(64);
    expect(open.stderr).toMatch(/--trust .*--token-file/);
    const token = join(experiment.project, 'token');
    writeFileSync(token, 'a secret that is long enough', { mode: 0o644 });
    const readable = await experiment.run(['manager', '--listen', '0.0.0.0:0', '--token-file', token]);
    expect(readable.code).toBe(78);
    expect(readable.stderr).toMatch(/chmod 600/);
  });
});

describe.skipIf(REDIS.missing !== null)(`with ${REDIS.name}`, () => {
  prepare(REDIS);

  soakTest('workers wait while Redis is away, and no result is lost', async () => {
    const server = queue.server as RedisServer;
    const child = manager();
    const ended = finished(child);
    await output(child, /workers can ask/);
    const workers = ['gpu0', 'gpu1'].map((id) => worker(id, '--seconds', '0.5'));
    await experiment.untilStarted(2);
    await server.kill();
    // Both want to say what has become of their tasks. A request for the status doesn't wait for long.
    expect(await ask({ type: 'status' })).toMatchObject({
      type: 'error',
      message: expect.stringMatching(/redis:.* can't be reached .*Start Redis/),
    });
    await pause(1_000);
    await server.start();
    const ends = await Promise.all(workers);
    for (const { code, stdout } of ends) {
      expect(code, stdout).toBe(0);
      expect(stdout).not.toMatch(/error/i);
    }
    const { code, stdout } = await ended;
    expect(code, stdout).toBe(0);
    expect(stdout).toMatch(/can't be reached .*Start Redis/);
    expect(names()).toHaveLength(6);
    for (const row of experiment.rows('results_mnist')) expect(row).toMatch(/,0\.(25|5),NaN$/);
    expect(experiment.starts()).toHaveLength(6);
  });

  soakTest('the tables are written all the same after a manager on another machine is gone', async () => {
    const server = queue.server as RedisServer;
    // As one that was killed a moment ago: its time runs out by itself.
    const other = JSON.stringify({ host: 'elsewhere', pid: 1 });
    server.command('SET', `gpu-owner-tasks:${queueName('test')}:manager`, other, 'PX', '60000');
    const child = manager();
    const ended = finished(child);
    await output(child, /pid 1 on elsewhere manages this queue[\s\S]*workers can ask/);
    expect((await worker('gpu0')).code).toBe(0);
    // All has ended, but who knows about the tables?
    await pause(1_000);
    expect(child.exitCode).toBeNull();
    server.command('PEXPIRE', `gpu-owner-tasks:${queueName('test')}:manager`, '500');
    const { code, stdout } = await ended;
    expect(code).toBe(0);
    expect(stdout).toMatch(/the other manager is gone: this process now writes the tables/);
    expect(names()).toHaveLength(6);
  });
});
