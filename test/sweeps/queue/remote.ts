import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { parseValue, stringifyValue, type Value } from '../../../lib/sweeps/task/index.ts';
import { bundle } from '../../support/bundle.ts';

let program: string | undefined;

/** An attempt in another process. */
export interface RemoteAttempt {
  token: string;
  task: { id: string; name: string };
  start: number;
  descriptors: number[];
}

/** Another process with the same queue. */
export class Remote {
  readonly #child: ChildProcess;
  readonly #answers = new Map<number, (answer: { value?: unknown; error?: string; code?: string }) => void>();
  readonly #aborted = new Map<string, string>();
  #asked = 0;
  readonly ended: Promise<void>;

  private constructor(child: ChildProcess, ready: () => void) {
    this.#child = child;
    this.ended = new Promise((resolve) => child.once('exit', () => resolve()));
    createInterface({ input: child.stdout as NonNullable<ChildProcess['stdout']> }).on('line', (line) => {
      const message = parseValue(line) as unknown as Record<string, never>;
      if (message.ready !== undefined) ready();
      else if (message.aborted !== undefined)
        this.#aborted.set(message.aborted, message.why as unknown as string);
      else this.#answers.get(message.id as unknown as number)?.(message);
    });
    child.stdin?.on('error', () => {});
  }

  static async start(url: string, project: string): Promise<Remote> {
    program ??= bundle(new URL('./fixtures/client.ts', import.meta.url).pathname);
    const child = spawn(process.execPath, [program, url, project], { stdio: ['pipe', 'pipe', 'inherit'] });
    return new Promise((resolve, reject) => {
      child.once('exit', (code) => reject(new Error(`a client of the queue ended: ${code}`)));
      const remote: Remote = new Remote(child, () => resolve(remote));
    });
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  /** Why an attempt of this process was told to end; undefined: it wasn't. */
  aborted(token: string): string | undefined {
    return this.#aborted.get(token);
  }

  /** A method of the queue, or of the client. */
  ask<T = unknown>(method: string, ...args: unknown[]): Promise<T> {
    const id = ++this.#asked;
    return new Promise((resolve, reject) => {
      this.#answers.set(id, ({ value, error, code }) => {
        this.#answers.delete(id);
        if (error === undefined) resolve(value as T);
        else reject(Object.assign(new Error(error), { code }));
      });
      this.#child.stdin?.write(`${stringifyValue({ id, method, args: args as Value[] })}\n`);
    });
  }

  take(options: { lifetime?: number; outlives?: number } = {}): Promise<RemoteAttempt | null> {
    return this.ask('take', options);
  }

  signal(name: NodeJS.Signals): void {
    this.#child.kill(name);
  }

  /** As SIGKILL does it; it is gone when this resolves. */
  async kill(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.ended;
  }

  /** Ends in order. */
  async close(): Promise<void> {
    this.#child.kill('SIGCONT');
    this.#child.stdin?.end();
    await this.ended;
  }
}
