// Starts the keeper as gpu-owner does, and watches the leases from outside.
import { type ChildProcess, execFileSync, type StdioOptions, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, afterEach } from 'vitest';
import { removeDirectory } from '../../bench/leftovers.js';
import { binaries } from './binaries.ts';
import { python } from './machine.ts';
import { childrenOf, isAlive, nameOf, processState, sendSignal, signalLiving } from './processes.ts';
import { pause, until } from './time.ts';

export { childrenOf, isAlive, stat } from './processes.ts';
export { until } from './time.ts';

export const keeperPath = join(binaries(), 'gpu-owner-keeper');
export { python } from './machine.ts';
export const fixture = (name: string): string => join(import.meta.dirname, '../jobs/fixtures', name);

export interface LaunchOptions {
  mode?: 'run' | 'task' | 'hold';
  /** Options of the keeper. */
  options?: string[];
  command?: string[];
  /** Options of the launcher. */
  launcher?: string[];
  leases?: string[];
  stdio?: StdioOptions;
  env?: NodeJS.ProcessEnv;
  keeper?: string;
  detached?: boolean;
}

export interface Outcome {
  code: number | null;
  signal: NodeJS.Signals | null;
}

const directories: string[] = [];
const processes: Running[] = [];

/** A directory of its own for a test, with lease files. */
export function workspace(leases = 1): { directory: string; leases: string[] } {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-keeper-'));
  directories.push(directory);
  const files = Array.from({ length: leases }, (_, i) => join(directory, `lease-${i}`));
  for (const file of files) writeFileSync(file, ' '.repeat(4095).concat('\n'));
  return { directory, leases: files };
}

/** The environment in which some processes are as slow as on a machine that is very busy. */
export function slow(): NodeJS.ProcessEnv {
  const shim = join(workspace().directory, 'slow.so');
  execFileSync('cc', ['-shared', '-fPIC', '-o', shim, fixture('slow_shim.c'), '-ldl']);
  return { ...process.env, LD_PRELOAD: shim, ASAN_OPTIONS: 'verify_asan_link_order=0' };
}

export function launcherArguments(options: LaunchOptions): string[] {
  const { mode = 'run', leases = [], launcher = [], command } = options;
  return [
    // Without site-packages: these can take four times as long as the interpreter itself.
    '-IS',
    fixture('launcher.py'),
    ...leases.flatMap((file) => ['--lease', file]),
    ...launcher,
    '--',
    options.keeper ?? keeperPath,
    mode,
    ...(options.options ?? []),
    ...(command ? ['--', ...command] : []),
  ];
}

/** A process with what it printed and how it ended. */
export class Running {
  readonly child: ChildProcess;
  readonly exited: Promise<Outcome>;
  stdout = '';
  stderr = '';

  constructor(file: string, args: string[], stdio: StdioOptions = 'pipe', options: object = {}) {
    this.child = spawn(file, args, { stdio, ...options });
    processes.push(this);
    this.child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.stdout += text;
    });
    this.child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text;
    });
    this.exited = new Promise((resolve) => {
      this.child.on('exit', (code, signal) => resolve({ code, signal }));
    });
  }

  get pid(): number {
    return this.child.pid as number;
  }

  kill(signal: NodeJS.Signals): void {
    signalLiving(this.pid, signal);
  }

  /** Waits until standard output matches, from `after` on; returns the position behind the match. */
  async printed(pattern: RegExp, after = 0): Promise<number> {
    let end = 0;
    await until(
      () => {
        const match = pattern.exec(this.stdout.slice(after));
        end = match ? after + match.index + match[0].length : 0;
        return match !== null;
      },
      () =>
        `${pattern} in ${JSON.stringify(this.stdout.slice(after))}, and on stderr ${JSON.stringify(this.stderr)}`,
    );
    return end;
  }
}

export function launch(options: LaunchOptions): Running {
  return new Running(python, launcherArguments(options), options.stdio ?? 'pipe', {
    env: options.env ?? process.env,
    detached: options.detached ?? false,
  });
}

/** Starts, waits for the end and for all output. */
export async function complete(
  options: LaunchOptions,
): Promise<Outcome & { stdout: string; stderr: string }> {
  const running = launch(options);
  const closed = new Promise((resolve) => running.child.on('close', resolve));
  const outcome = await running.exited;
  await closed;
  return { ...outcome, stdout: running.stdout, stderr: running.stderr };
}

/** The keeper of a front. */
export async function keeperOf(front: number): Promise<number> {
  let keeper: number | undefined;
  await until(() => {
    keeper = childrenOf(front).find((pid) => nameOf(pid) === 'gpu-owner-keep');
    return keeper !== undefined;
  }, 'the keeper');
  return keeper as number;
}

/** The keeper of a command that already runs, when the front has learnt of the command, too: both sleep. */
export async function restingKeeperOf(front: number): Promise<number> {
  const keeper = await keeperOf(front);
  await until(() => processState(keeper) === 'S', 'the keeper to rest');
  await until(() => processState(front) === 'S', 'the front to rest');
  return keeper;
}

/** The pid that a fixture wrote into a file. */
export async function pidIn(directory: string, name: string): Promise<number> {
  const path = join(directory, name);
  let pid = 0; // while the file is empty: a signal to it would reach this process and whatever has started the tests
  await until(() => {
    pid = existsSync(path) ? Number(readFileSync(path, 'utf8')) : 0;
    return pid > 0;
  }, path);
  return pid;
}

/** The processes of stubborn.py: its command, a daemon, and one that has stopped itself. */
export function stubbornPids(directory: string): Promise<number[]> {
  return Promise.all(['command', 'daemon', 'stopped'].map((name) => pidIn(directory, name)));
}

/** Asks an independent process whether leases are held. */
export class Probe {
  private readonly child = spawn(python, [fixture('probe.py')], { stdio: ['pipe', 'pipe', 'inherit'] });
  private readonly waiting: ((held: boolean) => void)[] = [];

  constructor() {
    createInterface({ input: this.child.stdout }).on('line', (line) =>
      this.waiting.shift()?.(line === 'held'),
    );
    afterAll(() => {
      this.child.kill();
    });
  }

  isHeld(file: string): Promise<boolean> {
    return new Promise((resolve) => {
      this.waiting.push(resolve);
      this.child.stdin.write(`${file}\n`);
    });
  }

  async isHeldFor(file: string, ms: number): Promise<boolean> {
    const end = Date.now() + ms;
    while (Date.now() < end) {
      if (!(await this.isHeld(file))) return false;
      await pause(5);
    }
    return true;
  }

  free(file: string): Promise<void> {
    return until(async () => !(await this.isHeld(file)), `the end of the lease ${file}`);
  }
}

/** Kills what a test that failed has left: the command and the keeper would outlive the front. */
function killTree(pid: number): void {
  if (!isAlive(pid)) return;
  sendSignal(pid, 'SIGSTOP');
  for (const child of childrenOf(pid)) killTree(child);
  sendSignal(pid, 'SIGKILL');
}

afterEach(() => {
  for (const { child } of processes.splice(0)) {
    if (child.exitCode === null && child.signalCode === null) killTree(child.pid as number);
  }
  for (const directory of directories.splice(0)) removeDirectory(directory);
});
