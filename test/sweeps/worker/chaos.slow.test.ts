// Whole worker processes under kill -9 of each of the processes that a task has.
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
