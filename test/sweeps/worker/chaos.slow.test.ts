// Whole worker processes under kill -9 and SIGSTOP at random moments, of every process there is.
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, realpathSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buildSync } from 'esbuild';
import { afterEach, beforeAll, expect, test } from 'vitest';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { binaries } from '../../support/binaries.ts';
import { Machine, pause, python, removeDirectory, root, until } from '../../support/machine.ts';
import { childrenOf, isAlive, nameOf, processesWith, sendSignal } from '../../support/processes.ts';

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const program = join(root, 'node_modules/.cache/gpu-owner-tests/worker.mjs');
const SECONDS = process.env.GPU_OWNER_SOAK ? 300 : 4;

beforeAll(() => {
  buildSync({
    entryPoints: [fixture('worker.ts')],
    outfile: program,
    bundle: true,
    platform: 'node',
    format: 'esm',
    packages: 'external',
  });
});

interface Chain {
  watchdog?: number | undefined;
  keeper?: number | undefined;
  command?: number | undefined;
}

class Project {
  readonly machine = new Machine(2);
  readonly directory = realpathSync(mkdtempSync(join(tmpdir(), 'gpu-owner-chaos-')));
  readonly locks = join(this.directory, 'locks');
  readonly workers = new Map<number, ChildProcess>();
  queue!: Queue;

  async open(tasks: number, seconds: number): Promise<void> {
    mkdirSync(this.locks);
    this.queue = await openQueue(null, this.directory);
    await this.queue.enqueue(
      Array.from({ length: tasks }, (_, i) => ({
        phase: 'p',
        outputDirectory: 'results',
        parameters: { i },
        command: { words: [python, fixture('family.py'), this.locks, String(seconds)] },
      })),
    );
  }

  /** A worker for this GPU. */
  start(gpu: number): ChildProcess {
    const child = this.machine.start([process.execPath, program, this.directory, String(gpu)], {
      env: { GPU_OWNER_BUILD: binaries() },
    });
    child.stdout?.resume();
    child.stderr?.on('data', (text) => process.stderr.write(text));
    this.workers.set(gpu, child);
    return child;
  }

  /** Processes that a worker has under way; a keeper without watchdog is its own child. */
  chain(worker: number): Chain {
    const chain: Chain = {};
    try {
      const children = childrenOf(worker).filter(isAlive);
      chain.watchdog = children.find((pid) => nameOf(pid) === 'gpu-owner-guard');
      chain.keeper = [...(chain.watchdog ? childrenOf(chain.watchdog) : []), ...children].find(
        (pid) => nameOf(pid) === 'gpu-owner-keep',
      );
      chain.command = chain.keeper ? childrenOf(chain.keeper)[0] : undefined;
    } catch {} // something of it has just ended
    return chain;
  }

  /** Living processes of tasks of this project, also orphans. */
  members(): number[] {
    return processesWith(`GPU_OWNER_TASK=${this.directory}/`);
  }

  violations(): string {
    const path = join(this.locks, 'violations');
    return existsSync(path) ? readFileSync(path, 'utf8') : '';
  }

  async close(): Promise<void> {
    for (const child of this.workers.values()) child.kill('SIGKILL');
    await this.queue.close();
    // The project's processes may still end their last system calls; they end when the directory is gone.
    removeDirectory(this.directory);
    await until(() => this.members().length === 0);
    await this.machine.close();
  }
}

const projects: Project[] = [];
afterEach(async () => {
  for (const project of projects.splice(0)) await project.close();
});

async function project(tasks: number, seconds: number): Promise<Project> {
  const made = new Project();
  projects.push(made);
  await made.open(tasks, seconds);
  return made;
}

function kill(pid: number | undefined, signal: NodeJS.Signals): void {
  if (pid !== undefined) sendSignal(pid, signal);
}

const cases = [
  ['worker'],
  ['worker', 'keeper'],
  ['worker', 'watchdog'],
  ['keeper'],
  ['watchdog'],
  ['keeper', 'watchdog'],
  ['watchdog', 'keeper', 'command'],
  ['command'],
];

test.each(cases.map((killed) => [killed.join(', '), killed] as const))(
  'nothing outlives the lease after kill -9 of %s',
  async (_, killed) => {
    const one = await project(1, 600);
    const worker = one.start(0);
    // Watchdog, keeper, command, and three others.
    const isWhole = () =>
      one.members().length === 6 &&
      ['deaf', 'popen', 'fork'].every((role) => existsSync(join(one.locks, `${role}-ready`)));
    await until(isWhole);
    const chain = one.chain(worker.pid as number);
    expect(chain).toEqual({
      watchdog: expect.any(Number),
      keeper: expect.any(Number),
      command: expect.any(Number),
    });
    const before = one.members();
    for (const victim of killed) {
      kill(victim === 'worker' ? worker.pid : chain[victim as keyof Chain], 'SIGKILL');
    }
    if (killed.includes('worker')) {
      // A worker's leases end when the last of its processes has, and not before.
      await until(async () => (await one.machine.states())[0] === 'free');
      expect(before.filter(isAlive)).toEqual([]);
    } else if (killed.length === 1 && killed[0] === 'watchdog') {
      await pause(100);
      expect(before.filter(isAlive)).toEqual(before.filter((pid) => pid !== chain.watchdog));
    } else {
      // The worker goes on with another attempt, once nothing is left of this one.
      await until(() => before.filter(isAlive).length === 0);
      await until(isWhole);
    }
    expect(one.violations()).toBe('');
  },
);

test(
  'tasks are done once while workers are killed and stopped all the time',
  async () => {
    const one = await project(SECONDS * 8, 0.15);
    const calm = new Map<number, number>();
    const end = performance.now() + SECONDS * 1000;
    const count: Record<string, number> = {};
    for (const gpu of [0, 1]) one.start(gpu);
    while (performance.now() < end) {
      await pause(20 + Math.random() * 250);
      const gpu = Math.random() < 0.5 ? 0 : 1;
      const worker = one.workers.get(gpu) as ChildProcess;
      if (worker.exitCode !== null || worker.signalCode !== null) {
        one.start(gpu);
        continue;
      }
      const chain = one.chain(worker.pid as number);
      const what = ['worker', 'keeper', 'watchdog', 'command', 'both', 'stop'][
        Math.floor(Math.random() * 6)
      ] as string;
      // One of a task's worker, keeper and watchdog must live on and not be suspended: no other process knows the task's
      // processes.
      if (what === 'worker') await pause((calm.get(gpu) ?? 0) - performance.now());
      count[what] = (count[what] ?? 0) + 1;
      if (what === 'worker') {
        worker.kill('SIGKILL');
        one.start(gpu);
      } else if (what === 'both') {
        kill(chain.keeper, 'SIGKILL');
        kill(chain.watchdog, 'SIGKILL');
      } else if (what === 'stop') {
        const all = [worker.pid, chain.keeper, chain.watchdog, chain.command];
        const victim = all[Math.floor(Math.random() * all.length)];
        kill(victim, 'SIGSTOP');
        if (victim === worker.pid || victim === chain.command) setTimeout(() => kill(victim, 'SIGCONT'), 150);
        else calm.set(gpu, performance.now() + 2_500); // the worker wakes the others every 2 s
      } else {
        kill(chain[what as keyof Chain], 'SIGKILL');
      }
      if (['keeper', 'watchdog', 'both'].includes(what)) {
        calm.set(gpu, Math.max(calm.get(gpu) ?? 0, performance.now() + 1_500));
      }
      expect(one.violations()).toBe('');
    }
    for (const [gpu, worker] of one.workers) {
      if (worker.exitCode !== null || worker.signalCode !== null) one.start(gpu);
    }
    // In the end everybody has a rest, and nothing is left of anything.
    for (const worker of one.workers.values()) worker.kill('SIGTERM');
    for (const worker of one.workers.values()) {
      await until(() => worker.exitCode !== null || worker.signalCode !== null);
    }
    await until(async () => (await one.machine.states()).every((state) => state === 'free'));
    expect(one.members()).toEqual([]);
    expect(one.violations()).toBe('');
    const counts = await one.queue.counts();
    expect(counts.completed).toBeGreaterThan(0);
    if (process.env.GPU_OWNER_SOAK) console.log(count, counts);
  },
  SECONDS * 1000 + 120_000,
);
