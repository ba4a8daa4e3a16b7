// A driver call that is stuck in the kernel (state D), made by a file system that doesn't answer. The call returns when the
// file system ends.
import type { ChildProcess } from 'node:child_process';
import {
  type Dirent,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, type TestContext } from 'vitest';
import { compileDriverLibrary, noCompiler } from './driver-library.ts';
import { Machine, output, pause, processState, python, until } from './machine.ts';

const noFuse = process.getuid?.() === 0 && existsSync('/dev/fuse') ? null : 'needs root and /dev/fuse';
export const noStuckCalls = noCompiler ?? noFuse;
/** For what happens at once, on a busy machine. */
export const SOON = 20_000;
/** Which files stand for which lock. */
const KINDS: [RegExp, string][] = [
  [/^GPU-.*\.lease$/, 'lease'],
  [/^acquisition\.lock$/, 'decision'],
  [/^gpu-lock-magic/, 'share'],
  [/^queue\.db-lock$/, 'attempt'],
];

let libraries: string;
beforeAll(() => {
  libraries = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
  if (noStuckCalls === null) compileDriverLibrary(libraries);
});
afterAll(() => rmSync(libraries, { recursive: true }));

/** A machine whose GPU 0 gets stuck when it is told to. */
export class StuckMachine extends Machine {
  readonly #switch = join(this.directory, 'stuck');
  #server: ChildProcess | undefined;
  #file = '';
  #said = '';

  static async make({ onTestFinished }: TestContext): Promise<StuckMachine> {
    const machine = new StuckMachine(2);
    onTestFinished(() => machine.close());
    const mount = join(machine.directory, 'mount');
    mkdirSync(mount);
    const server = machine.start([
      python,
      join(import.meta.dirname, '../integration/fixtures/silent_file.py'),
      mount,
    ]);
    machine.#server = server;
    machine.#file = await output(server, /(\/proc\/\d+\/fd\/\d+\/file)\n/);
    server.stdout?.on('data', (text) => (machine.#said += text));
    await machine.status();
    return machine;
  }

  override get env(): Record<string, string | undefined> {
    return {
      ...super.env,
      GPU_OWNER_NVML_LIBRARY: join(libraries, 'libnvidia-ml.so.1'),
      STUCK_AT: this.#file,
      STUCK_WHILE: this.#switch,
    };
  }

  getStuck(): void {
    writeFileSync(this.#switch, '');
  }

  /** Waits until a call is under way that doesn't return. */
  async untilStuck(): Promise<void> {
    await until(() => this.#said.includes('asked'), 'a call that gets stuck', SOON);
  }

  /** The calls that are stuck return. */
  async letGo(): Promise<void> {
    rmSync(this.#switch, { force: true });
    const server = this.#server;
    if (server === undefined || server.exitCode !== null) return;
    server.stdin?.end();
    await new Promise((resolve) => server.once('exit', resolve));
  }

  /** Lists what is locked here, by whomever. */
  locked(): string {
    const held = new Set<string>();
    const locks = readFileSync('/proc/locks', 'utf8');
    for (const entry of filesIn(this.directory)) {
      const kind = KINDS.find(([pattern]) => pattern.test(entry.name))?.[1];
      if (kind === undefined) continue;
      const ino = statSync(join(entry.parentPath, entry.name), { throwIfNoEntry: false })?.ino;
      if (new RegExp(`^\\d+: (?!->).*:${ino} `, 'm').test(locks)) held.add(kind);
    }
    return [...held].sort().join(' ');
  }

  override async close(): Promise<void> {
    await this.letGo();
    await super.close();
  }
}

/** Claims make directories under other names, and rename them. */
function filesIn(directory: string): Dirent[] {
  for (let tries = 1; ; tries++) {
    try {
      return readdirSync(directory, { recursive: true, withFileTypes: true });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT' || tries === 100) throw error;
    }
  }
}

/** Ended as far as it can: its main thread is gone, or is about to be, and who waits for it isn't told. */
export async function untilStuckAtItsEnd(child: ChildProcess): Promise<void> {
  const state = () => processState(child.pid as number);
  await until(
    () => state() === 'Z',
    () => `the end of a process in state ${state()}, exit code ${child.exitCode}`,
    SOON,
  );
  await pause(100); // Node.js would be told of an end by now
  if (child.exitCode !== null || child.signalCode !== null) throw new Error('it has ended');
}
