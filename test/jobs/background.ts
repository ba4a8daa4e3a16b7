// Jobs in the background, as tests start and watch them.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect } from 'vitest';
import { Machine, type Starting } from '../support/machine.ts';
import { killAll } from '../support/processes.ts';
import { until } from '../support/time.ts';

// biome-ignore lint/suspicious/noExplicitAny: the JSON of the command is what tests are about
export type ListedJob = any;

/** A user's jobs, where the configuration is this. */
export function configured(machine: Machine, lines: string): Jobs {
  const configuration = join(machine.directory, 'configuration');
  mkdirSync(join(configuration, 'gpu-owner'), { recursive: true });
  writeFileSync(join(configuration, 'gpu-owner/config.yaml'), lines);
  return new Jobs(machine, { env: { XDG_CONFIG_HOME: configuration } });
}

/** Whether the file system can free the middle of a file in this directory. */
export function makesHoles(directory: string): boolean {
  const file = join(directory, 'holes');
  writeFileSync(file, Buffer.alloc(2 ** 20));
  const isDone = spawnSync('fallocate', ['-p', '-l', String(2 ** 20), file]).status === 0;
  const isFreed = isDone && statSync(file).blocks === 0;
  rmSync(file);
  return isFreed;
}

/** A user's jobs on a machine. */
export class Jobs {
  readonly machine: Machine;
  readonly #starting: Starting;

  constructor(machine: Machine, starting: Starting = {}) {
    this.machine = machine;
    this.#starting = starting;
  }

  run(args: string[], starting: Starting = {}) {
    return this.machine.runCommand(args, {
      ...this.#starting,
      ...starting,
      env: { ...this.#starting.env, ...starting.env },
    });
  }

  /** Submits a job. @param words options, `--` and the command @returns its number */
  async submit(words: string[], starting: Starting = {}): Promise<number> {
    const { code, stdout, stderr } = await this.run(['submit', ...words], starting);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(/^[1-9]\d*\n$/);
    return Number(stdout);
  }

  async list(...options: string[]): Promise<ListedJob[]> {
    const { code, stdout, stderr } = await this.run(['jobs', '--all', '--json', ...options]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return JSON.parse(stdout);
  }

  async find(id: number): Promise<ListedJob> {
    return (await this.list()).find((job) => job.id === id);
  }

  /** Resolves with a job as soon as it is in one of these states. */
  async reach(id: number, ...states: string[]): Promise<ListedJob> {
    let job: ListedJob;
    await until(async () => {
      job = await this.find(id);
      return states.includes(job?.state);
    });
    return job;
  }

  async wait(...ids: (number | string)[]): Promise<number | null> {
    return (await this.run(['wait', ...ids.map(String)])).code;
  }

  async logs(id: number | string, ...options: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.run(['logs', String(id), ...options]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return stdout;
  }

  /** The directory of a job. */
  directoryOf(id: number): string {
    const jobs = join(this.machine.stateDirectory(this.#starting.uid), 'gpu-owner/jobs');
    const [machine = ''] = readdirSync(jobs);
    return join(jobs, machine, String(id));
  }

  /** PIDs of everything that has a job's lock file open: its processes, whatever anybody has written down. */
  processes(): number[] {
    // Not by its name: the file was made without one.
    const files = names(this.machine.lockDirectory)
      .filter((name) => name.startsWith('jobs-'))
      .map((name) => identityOf(join(this.machine.lockDirectory, name)));
    return names('/proc')
      .filter((name) => /^\d+$/.test(name))
      .filter((pid) =>
        names(`/proc/${pid}/fd`).some((fd) => files.includes(identityOf(`/proc/${pid}/fd/${fd}`))),
      )
      .map(Number);
  }

  /** Ends what is left of all jobs. */
  async end(): Promise<void> {
    // All at once: a keeper that outlived its command by a moment would note the end.
    await killAll(() => this.processes());
  }
}

function names(directory: string): string[] {
  try {
    return readdirSync(directory);
  } catch {
    return [];
  }
}

/** Other file systems, and pipes, have the same numbers of inodes. */
function identityOf(path: string): string | null {
  try {
    const { dev, ino } = statSync(path);
    return `${dev}:${ino}`;
  } catch {
    return null;
  }
}

/** A machine, and the jobs of a user on it. */
interface JobTest {
  machine: Machine;
  jobs: Jobs;
}

/**
 * Gives each test of a file a machine of its own, and ends what is left of its jobs.
 * @param use is given them before each test @param name of the machine, or how many GPUs it has
 */
export function jobTest(use: (opened: JobTest) => void, name: string | number = 2): void {
  let opened: JobTest;
  beforeEach(() => {
    const machine = new Machine(name);
    opened = { machine, jobs: new Jobs(machine) };
    use(opened);
  });
  afterEach(async () => {
    await opened.jobs.end();
    await opened.machine.close();
  });
}
