// Jobs in the background, as tests start and watch them.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect } from 'vitest';
import { exitCodeOfEnd } from '../../lib/jobs/job-control.ts';
import { type NamedJob, resolveNames } from '../../lib/jobs/job-parts.ts';
import { listJobs, stateOf } from '../../lib/jobs/job-state.ts';
import { JobStore } from '../../lib/jobs/job-store.ts';
import { describeNamed, waitForNamed } from '../../lib/jobs/named-jobs.ts';
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

  /**
   * Reads jobs in this process, as commands for this user would: a test asks often, and a command takes fifty times as long.
   * @param read doesn't wait
   */
  #read<T>(read: (store: JobStore) => T): T {
    const { env, uid } = this.#starting;
    const own = { ...this.machine.env, XDG_STATE_HOME: this.machine.stateDirectory(uid), ...env };
    const { env: before, geteuid } = process;
    process.env = own;
    if (uid !== undefined) process.geteuid = () => uid; // whose jobs they are; root may read them
    try {
      return read(JobStore.open());
    } finally {
      Object.assign(process, { env: before, geteuid });
    }
  }

  /** All jobs, as `gpu-owner jobs --all --json` lists them where the driver isn't asked. */
  async list(): Promise<ListedJob[]> {
    return this.#read(() => listJobs({ user: null, all: true, lockDirectory: undefined }));
  }

  async find(id: number): Promise<ListedJob> {
    return (await this.list()).find((job) => job.id === id);
  }

  /** All about a job or a part, as `gpu-owner jobs JOB --json` has it where the driver isn't asked. */
  async details(word: number | string): Promise<ListedJob> {
    return this.#read((store) => describeNamed(store, resolveNames(store, [String(word)])[0] as NamedJob));
  }

  /** Resolves with a job as soon as it is in one of these states. One that runs has a keeper, and its command. */
  async reach(id: number, ...states: string[]): Promise<ListedJob> {
    const isReached = () => {
      const { state = '', job } = this.#read((store) => stateOf(store, id)) ?? {};
      return states.includes(state) && (state !== 'running' || job?.end?.pid != null);
    };
    await until(isReached, `job ${id}: ${states}`);
    return this.find(id);
  }

  /** Resolves with the exit code of `gpu-owner wait`. */
  async wait(...words: (number | string)[]): Promise<number> {
    const [store, named] = this.#read((store) => [store, resolveNames(store, words.map(String))] as const);
    const ends = (await waitForNamed(store, named, null)) ?? [];
    return ends.map(exitCodeOfEnd).find((code) => code !== 0) ?? 0;
  }

  /** What `gpu-owner logs` prints. */
  async logs(id: number | string, ...options: string[]): Promise<string> {
    if (options.length === 0) {
      const { output } = await this.details(id);
      return output === null ? '' : readFileSync(output, 'utf8');
    }
    const { code, stdout, stderr } = await this.run(['logs', String(id), ...options]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return stdout;
  }

  store(): JobStore {
    return this.#read((store) => store);
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
      .filter((name) => /^\d+$/.test(name) && name !== String(process.pid))
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
