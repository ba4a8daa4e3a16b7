import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmdirSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import { removeDirectory } from '../../bench/leftovers.js';
import { binaries } from './binaries.ts';
import { killAll, treeOf } from './processes.ts';
import { WAIT_TIMEOUT_MS } from './time.ts';

export { processState, signalAll } from './processes.ts';
export { pause, until } from './time.ts';
export { removeDirectory };

export const root = resolve(import.meta.dirname, '../..');
export const command = join(root, 'dist/gpu-owner.cjs');
export const launcher = join(root, 'bin/gpu-owner.cjs');
/** One that other users can run, too. */
export const python = existsSync('/usr/bin/python3') ? '/usr/bin/python3' : 'python3';

/** Another user's id, for tests as root. */
export const NOBODY = 65534;

/** The UUID of a GPU of a simulated machine without a name. */
export const uuidOf = (gpu: number): string =>
  `GPU-00000000-0000-4000-8000-${gpu.toString(16).padStart(12, '0')}`;

export interface Starting {
  env?: Record<string, string | undefined>;
  uid?: number;
  /** Default: the number of the user. */
  gid?: number;
  /** In octal. */
  umask?: string;
  cwd?: string;
}

export interface Finished {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

/** Can tests be another user, who may read this checkout and run its programs? Otherwise: why not. */
export function whyNotNobody(): string | null {
  if (process.getuid?.() !== 0) return 'needs root, to act as two users';
  const [program, args] = wrapped(
    [process.execPath, '-e', `require('node:fs').readFileSync(${JSON.stringify(command)})`],
    {
      uid: NOBODY,
    },
  );
  return spawnSync(program, args).status === 0 ? null : 'user nobody may not read this checkout';
}

/** Words that run a program as the first process of a PID namespace. */
export const UNSHARE = ['unshare', '--pid', '--fork', '--mount-proc', '--kill-child'];

/** Does UNSHARE work here? Otherwise: why not. */
export function whyNoNamespace(): string | null {
  const { status } = spawnSync('unshare', [...UNSHARE.slice(1), 'true']);
  return status === 0 ? null : 'needs root, for a namespace of PIDs';
}

/** Can tests mount a file system that others see, too? */
export function canMount(): boolean {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-mount-'));
  const isMounted = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'none', directory]).status === 0;
  if (isMounted) spawnSync('umount', [directory]);
  rmdirSync(directory);
  return isMounted;
}

/** Words that run a program as a user, with a umask. */
export function wrapped(words: string[], { uid, gid = uid, umask }: Starting): [string, string[]] {
  const all = [
    ...(uid === undefined ? [] : ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--clear-groups', '--']),
    ...(umask === undefined ? [] : ['sh', '-c', `umask ${umask}; exec "$@"`, 'sh']),
    ...words,
  ];
  return [all[0] as string, all.slice(1)];
}

/** A simulated machine of its own for a test, with whole processes on it. */
export class Machine {
  readonly directory: string;
  readonly name: string;
  readonly #children: ChildProcess[] = [];
  #configuration = '/dev/null';

  constructor(name: string | number) {
    this.name = String(name);
    this.directory = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
    chmodSync(this.directory, 0o755);
    // The simulator would make it, but the first process may be of another user than the directory's owner.
    mkdirSync(join(this.directory, 'machines'));
    chmodSync(join(this.directory, 'machines'), 0o1777);
    mkdirSync(join(this.directory, 'state'));
    chmodSync(join(this.directory, 'state'), 0o1777);
  }

  get env(): Record<string, string | undefined> {
    return {
      ...process.env,
      GPU_OWNER_SIMULATE: this.name,
      GPU_OWNER_SIMULATE_DIR: join(this.directory, 'machines'),
      GPU_OWNER_MACHINE_CONFIG: this.#configuration,
      XDG_CONFIG_HOME: join(this.directory, 'no-configuration'),
      XDG_STATE_HOME: this.stateDirectory(),
      GPU_OWNER_LOCK_DIR: undefined,
      CUDA_VISIBLE_DEVICES: undefined,
      CUDA_DEVICE_ORDER: undefined,
    };
  }

  /** Sets the machine's configuration file. */
  configure(text: string): void {
    this.#configuration = join(this.directory, 'config.yaml');
    writeFileSync(this.#configuration, text);
  }

  /** Where a user's jobs are. */
  stateDirectory(uid = process.geteuid?.()): string {
    return join(this.directory, 'state', String(uid));
  }

  get lockDirectory(): string {
    const machines = join(this.directory, 'machines');
    // That of a machine that a file describes has a name made of the file's, once it is there.
    const name = isAbsolute(this.name) ? (readdirSync(machines)[0] ?? '') : this.name;
    return join(machines, name, 'locks');
  }

  /** Starts a program on this machine. */
  start(words: string[], starting: Starting = {}, stdio: 'pipe' | 'ignore' = 'pipe'): ChildProcess {
    const [program, args] = wrapped(words, starting);
    const child = spawn(program, args, {
      env: {
        ...this.env,
        XDG_STATE_HOME: this.stateDirectory(starting.uid),
        ...starting.env,
      } as NodeJS.ProcessEnv,
      ...(starting.cwd === undefined ? {} : { cwd: starting.cwd }),
      stdio: [stdio, stdio, stdio],
    });
    child.once('exit', (...ending: Ending) => ended.exit.set(child, ending));
    child.once('close', (...ending: Ending) => ended.close.set(child, ending));
    this.#children.push(child);
    return child;
  }

  /** Starts the command. */
  startCommand(args: string[], starting: Starting = {}): ChildProcess {
    return this.start([process.execPath, command, ...args], starting);
  }

  /** Runs a program to its end. */
  async run(words: string[], starting: Starting = {}, input = ''): Promise<Finished> {
    const child = this.start(words, starting);
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
    return finished(child);
  }

  /** Runs the command to its end. */
  runCommand(args: string[], starting: Starting = {}): Promise<Finished> {
    return this.run([process.execPath, command, ...args], starting);
  }

  /** Runs commands that look or fail, one after the other in one process. @param lines their words */
  async runCommands(lines: readonly (readonly string[])[], starting: Starting = {}): Promise<Finished[]> {
    const program = join(root, 'test/fixtures/commands.cjs');
    const { stdout, stderr } = await this.run([process.execPath, program], starting, JSON.stringify(lines));
    const results = stdout
      .split('\n')
      .filter(Boolean)
      .map((line) => JSON.parse(line));
    if (results.length < lines.length) throw new Error(`after ${stdout}: ${stderr}`);
    return results;
  }

  /** Runs JavaScript with the library as `gpuOwner` in scope. */
  runScript(source: string, starting: Starting = {}): Promise<Finished> {
    return this.run([process.execPath, '--input-type=module', '-e', this.script(source)], starting);
  }

  script(source: string): string {
    return `import * as gpuOwner from ${JSON.stringify(join(root, 'dist/index.js'))};\nconst { GPUOwner } = gpuOwner;\n${source}`;
  }

  /** A shell's words: after the command `first`, it waits for the file, and ends with the code. */
  untilFile(name: string, code = 0, first = ''): string[] {
    const wait = `while [ ! -e ${join(this.directory, name)} ]; do sleep 0.1; done`;
    return ['sh', '-c', `${first}${wait}${code === 0 ? '' : `; exit ${code}`}`];
  }

  /** Makes an empty file, as untilFile() waits for. */
  touch(name: string): void {
    writeFileSync(join(this.directory, name), '');
  }

  /** Switches a fault of the simulated driver: ('gpu=0', 'lost=on'). */
  set(...pairs: string[]): void {
    const { status, stderr } = spawnSync(join(binaries(), 'gpu-owner-simulator'), ['set', ...pairs], {
      env: this.env as NodeJS.ProcessEnv,
      encoding: 'utf8',
    });
    if (status !== 0) throw new Error(stderr);
  }

  /** The process table of the simulated driver, read from its state: what is true, whatever gpu-owner thinks. */
  processes(gpu: number): number[] {
    return this.allProcesses()[gpu] as number[];
  }

  /** By GPU. */
  allProcesses(): number[][] {
    return this.#shown().map(({ processes }) => processes.map(({ pid }) => pid));
  }

  /** The UUIDs of the GPUs. */
  uuids(): string[] {
    return this.#shown().map(({ uuid }) => uuid);
  }

  #shown(): { uuid: string; processes: { pid: number }[] }[] {
    const { stdout } = spawnSync(join(binaries(), 'gpu-owner-simulator'), ['show', '--json'], {
      env: this.env as NodeJS.ProcessEnv,
      encoding: 'utf8',
    });
    return JSON.parse(stdout).gpus;
  }

  // biome-ignore lint/suspicious/noExplicitAny: the JSON of the command is what tests are about
  async status(): Promise<any[]> {
    const { code, stdout, stderr } = await this.runCommand(['status', '--json']);
    if (code !== 0) throw new Error(stderr);
    return JSON.parse(stdout);
  }

  async states(): Promise<string[]> {
    return (await this.status()).map(({ state }) => state);
  }

  /** Ends what is left and removes all traces. */
  async close(): Promise<void> {
    const left = this.#children
      .filter(({ exitCode, signalCode }) => exitCode === null && signalCode === null)
      .flatMap(({ pid }) => pid ?? []);
    // A keeper and its command live on without the front.
    await killAll(() => left.flatMap(treeOf));
    removeDirectory(this.directory);
  }
}

type Ending = [code: number | null, signal: NodeJS.Signals | null];
/** Children that have ended, by event: a later listener would wait for ever. */
const ended = { exit: new WeakMap<ChildProcess, Ending>(), close: new WeakMap<ChildProcess, Ending>() };

/**
 * Resolves with a child's end, also if that has come already. Output that came before it was asked for is lost then.
 * @param event close: the child has ended, and no process has its output open any longer; exit: the child has ended
 */
export async function finished(child: ChildProcess, event: 'close' | 'exit' = 'close'): Promise<Finished> {
  let stdout = '';
  let stderr = '';
  child.stdout?.setEncoding('utf8').on('data', (text) => (stdout += text));
  child.stderr?.setEncoding('utf8').on('data', (text) => (stderr += text));
  const [code, signal] =
    ended[event].get(child) ??
    (await new Promise<Ending>((resolve) => {
      child.once(event, (...ending: Ending) => resolve(ending));
    }));
  return { code, signal, stdout, stderr };
}

/** Resolves with the first output that matches. */
export function output(
  child: ChildProcess,
  pattern: RegExp,
  milliseconds = WAIT_TIMEOUT_MS,
): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = '';
    const timer = setTimeout(() => reject(new Error(`${pattern} not seen in: ${text}`)), milliseconds);
    const look = (more: Buffer) => {
      text += more.toString();
      const found = pattern.exec(text);
      if (found === null) return;
      clearTimeout(timer);
      resolve(found[1] ?? found[0]);
    };
    child.stdout?.on('data', look);
    child.stderr?.on('data', look);
    child.once('close', () => reject(new Error(`ended before ${pattern} was seen: ${text}`)));
  });
}
