import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface, type Interface } from 'node:readline';
import { removeDirectory } from '../../bench/leftovers.js';
import { binaries } from './binaries.ts';

export const MiB = 2 ** 20;
export const GiB = 2 ** 30;
/** Memory that a context takes, in bytes. */
export const CONTEXT = 416 * MiB;
export const NO_INSTANCE = 0xffffffff;

export const tool = join(binaries(), 'gpu-owner-simulator');
export const libraries = join(binaries(), 'simulator');

// One that other users can run, too.
const python = existsSync('/usr/bin/python3') ? '/usr/bin/python3' : 'python3';

/** Another user's id, for tests as root. */
export const NOBODY = 65534;

/** Can this be tested: may we become another user, who may run the binaries? */
export function canBeNobody(): boolean {
  const [program, args] = command(['test', '-x', tool, '-a', '-r', libraries], { uid: NOBODY });
  return process.getuid?.() === 0 && spawnSync(program, args).status === 0;
}

type Variables = Record<string, string | undefined>;

/** Starts a program as this user or another one; `umask` in octal. */
interface Starting {
  environment?: Variables;
  uid?: number;
  umask?: string;
}

function command(program: string[], { uid, umask }: Starting): [string, string[]] {
  const whole = [
    ...(umask === undefined ? [] : ['sh', '-c', `umask ${umask}; exec "$@"`, 'sh']),
    ...(uid === undefined ? [] : ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', '--']),
    ...program,
  ];
  return [whole[0] as string, whole.slice(1)];
}

/** A simulated machine whose state lies in a directory of its own. */
export class Simulated {
  readonly directory: string;
  readonly machine: string;
  readonly environment: Variables;
  readonly #sessions: Session[] = [];

  constructor(machine: string | number, parent = tmpdir()) {
    this.machine = String(machine);
    const own = mkdtempSync(join(parent, 'simulator-test-'));
    chmodSync(own, 0o755);
    this.directory = join(own, 'base');
    this.environment = {
      ...process.env,
      GPU_OWNER_SIMULATE: this.machine,
      GPU_OWNER_SIMULATE_DIR: this.directory,
      SIMULATOR_LIBRARIES: libraries,
      CUDA_VISIBLE_DEVICES: undefined,
      CUDA_DEVICE_ORDER: undefined,
    };
  }

  /** Where the machine's files are. */
  get home(): string {
    return join(this.directory, this.machine);
  }

  /** Runs the tool to its end. */
  tool(args: string[], { environment, uid, umask }: Starting = {}) {
    const [program, rest] = command([tool, ...args], {
      ...(uid === undefined ? {} : { uid }),
      ...(umask === undefined ? {} : { umask }),
    });
    const env = { ...this.environment, ...environment };
    return spawnSync(program, rest, { env, encoding: 'utf8', timeout: 20_000 });
  }

  set(...pairs: string[]): void {
    const { status, stderr } = this.tool(['set', ...pairs]);
    if (status !== 0) throw new Error(stderr);
  }

  // biome-ignore lint/suspicious/noExplicitAny: the tool's JSON is what the tests are about
  show(): any {
    return JSON.parse(this.tool(['show', '--json']).stdout);
  }

  /** The pids on a GPU, according to the shared state itself. */
  witness(gpu: number): number[] {
    return this.show().gpus[gpu].processes.map((each: { pid: number }) => each.pid);
  }

  session(starting: Starting = {}): Session {
    const session = new Session({
      ...starting,
      environment: { ...this.environment, ...starting.environment },
    });
    this.#sessions.push(session);
    return session;
  }

  /** `occupy`, once it is ready. */
  async occupy(...args: string[]): Promise<ChildProcess> {
    const child = spawn(tool, ['occupy', ...args], {
      env: this.environment,
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    for await (const line of createInterface(child.stdout)) if (line === `ready ${child.pid}`) return child;
    throw new Error('occupy ended');
  }

  [Symbol.dispose](): void {
    for (const session of this.#sessions) session.kill();
    removeDirectory(join(this.directory, '..'));
  }
}

/** A Python process that uses the simulated libraries as it is told. */
export class Session {
  readonly child: ChildProcess;
  readonly #lines: Interface;
  readonly #waiting: ((line: string | null) => void)[] = [];
  #closed = false;
  stderr = '';

  constructor(starting: Starting) {
    const [program, args] = command(
      [python, '-S', '-B', join(import.meta.dirname, '../simulator/fixtures/session.py')],
      starting,
    );
    this.child = spawn(program, args, { env: starting.environment, stdio: ['pipe', 'pipe', 'pipe'] });
    this.child.stderr?.on('data', (data) => {
      this.stderr += data;
    });
    this.#lines = createInterface(this.child.stdout as NodeJS.ReadableStream);
    this.#lines.on('line', (line) => this.#waiting.shift()?.(line));
    this.#lines.on('close', () => {
      this.#closed = true;
      for (const resolve of this.#waiting.splice(0)) resolve(null);
    });
    this.child.stdin?.on('error', () => {});
  }

  get pid(): number {
    return this.child.pid as number;
  }

  /** The value of a Python expression there. */
  // biome-ignore lint/suspicious/noExplicitAny: whatever the expression gives
  async do(code: string): Promise<any> {
    const line = await new Promise<string | null>((resolve) => {
      if (this.#closed) return resolve(null);
      this.#waiting.push(resolve);
      this.child.stdin?.write(`${JSON.stringify(code)}\n`);
    });
    if (line === null) throw new Error(`the process ended: ${this.stderr}`);
    const { value, error } = JSON.parse(line);
    if (error !== undefined) throw new Error(error);
    return value;
  }

  kill(signal: NodeJS.Signals = 'SIGKILL'): void {
    this.child.kill(signal);
  }

  /** Resolves when the process has been waited for. */
  async ended(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    await new Promise((resolve) => this.child.once('exit', resolve));
  }
}

export { until } from './time.ts';
