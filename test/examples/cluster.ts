// An experiment on a Redis, as the templates for clusters have it: its tasks wait until they may end.
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { childrenOf } from '../support/keeper.ts';
import { type Finished, finished, launcher, Machine, root, signalAll, until } from '../support/machine.ts';
import { RedisServer } from '../support/redis-server.ts';

const PASSWORD = 's3cret';

/** Says on which GPU it is, and ends when it may. */
const TRAIN = `echo "$CUDA_VISIBLE_DEVICES" > started.$1
until [ -e go.$1 ]; do sleep 0.02; done
echo '{"loss": 0.5}' > "$GPU_OWNER_RESULT"
`;

export class Cluster {
  readonly machine: Machine;
  readonly project: string;
  readonly #redis: RedisServer;
  readonly #jobs: ChildProcess[] = [];

  private constructor(redis: RedisServer) {
    this.#redis = redis;
    this.machine = new Machine(3);
    this.project = join(this.machine.directory, 'project');
    mkdirSync(join(this.project, 'configs'), { recursive: true });
    const sweep = 'defaults: { output_dir: results }\nexp1:\n  combinations:\n    - lr: [1, 2, 3]\n';
    writeFileSync(join(this.project, 'configs/config_exp1.yaml'), sweep);
    writeFileSync(join(this.project, 'train.sh'), TRAIN);
    writeFileSync(join(this.machine.directory, 'password'), `${PASSWORD}\n`, { mode: 0o600 });
    mkdirSync(join(this.machine.directory, 'bin'));
    symlinkSync(launcher, join(this.machine.directory, 'bin/gpu-owner'));
  }

  static async open(): Promise<Cluster> {
    return new Cluster(await RedisServer.start({ password: PASSWORD }));
  }

  /** Environment of a user of the cluster. */
  get env(): Record<string, string | undefined> {
    return {
      ...this.machine.env,
      PATH: `${join(this.machine.directory, 'bin')}:${process.env.PATH}`,
      GPU_OWNER_QUEUE: this.#redis.url('project=cluster').replace(/\/\/.*@/, '//'),
      GPU_OWNER_QUEUE_PASSWORD_FILE: join(this.machine.directory, 'password'),
    };
  }

  /** Runs a template as a batch system does: in a session of its own. */
  submit(template: string, words: string[] = [], env: Record<string, string> = {}): Job {
    const child = spawn('/bin/bash', [join(root, 'examples', template), ...words], {
      cwd: this.project,
      env: { ...this.env, ...env } as NodeJS.ProcessEnv,
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#jobs.push(child);
    return new Job(child);
  }

  /** Which GPUs the task has been started with; waits until it has. */
  async started(task: number): Promise<string> {
    const path = join(this.project, `started.${task}`);
    await until(() => existsSync(path) && readFileSync(path, 'utf8').endsWith('\n'));
    return readFileSync(path, 'utf8').trim();
  }

  /** Lets a task end. */
  go(task: number): void {
    writeFileSync(join(this.project, `go.${task}`), '');
  }

  /** lr of all completed tasks. */
  rows(): string[] {
    const text = readFileSync(join(this.project, 'results/final_results.csv'), 'utf8');
    const lines = text.trim().split('\n').slice(1);
    return lines.map((line) => line.split(',')[1] as string).sort();
  }

  // biome-ignore lint/suspicious/noExplicitAny: the JSON of the command is what tests are about
  async status(): Promise<any> {
    const { stdout, stderr } = await this.machine.runCommand(['exp', 'status', '--json'], {
      cwd: this.project,
      env: this.env,
    });
    if (stdout === '') throw new Error(stderr);
    return JSON.parse(stdout);
  }

  async close(): Promise<void> {
    for (const { pid, exitCode, signalCode } of this.#jobs) {
      if (exitCode === null && signalCode === null) signalAll(family(pid as number), 'SIGKILL');
    }
    await this.machine.close();
    await this.#redis.remove();
  }
}

export class Job {
  readonly ended: Promise<Finished>;
  readonly #child: ChildProcess;

  constructor(child: ChildProcess) {
    this.#child = child;
    this.ended = finished(child);
  }

  /** PID of what has been started. */
  get pid(): number {
    return this.#child.pid as number;
  }

  /** To it and all descendants, whatever their sessions, as batch systems end jobs. */
  kill(signal: NodeJS.Signals): void {
    signalAll(family(this.pid), signal);
  }
}

function family(pid: number): number[] {
  try {
    return [pid, ...childrenOf(pid).flatMap(family)];
  } catch {
    return []; // the process has ended
  }
}
