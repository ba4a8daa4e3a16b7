import { closeSync, writeSync } from 'node:fs';
import {
  failureIn,
  placeholderError,
  readLineUntil,
  type Settings,
  spawnPlaceholder,
} from '../claims/index.ts';
import { ifPossible } from '../errors.ts';
import { type GPU, SHOWS_ONE_INSTANCE } from '../gpus/index.ts';
import { now, TIMEOUTS, warnOnce } from '../platform/index.ts';
import { reap, registerHelper, waitForEnd } from './reaper.ts';

/**
 * A process that keeps GPUs visibly taken for a command which hasn't reached them yet. The process ends when its input is
 * closed; with 'auto' also when the command's processes show on the GPUs, or after 60 s.
 */
export class PlaceholderProcess {
  readonly pid: number;
  /** The end of its standard input that keeps it going. */
  readonly input: number;

  readonly #gpus: readonly GPU[];
  /** How long it may take until it has its GPUs, and the pipe that tells; null: it has them. */
  #starting: { until: number; output: number } | null = null;
  #ended = false;

  private constructor(pid: number, input: number, gpus: readonly GPU[]) {
    registerHelper(pid);
    this.pid = pid;
    this.input = input;
    this.#gpus = gpus;
  }

  /**
   * Starts one for a command; {@link awaitReady} must follow. CUDA_VISIBLE_DEVICES of this process must show them.
   * @param timeoutMs how long CUDA may take to start @returns null: none is wanted, or these GPUs admit none @throws ERR_PLACEHOLDER
   */
  static start(gpus: readonly GPU[], settings: Settings, timeoutMs: number): PlaceholderProcess | null {
    const started = PlaceholderProcess.#spawn(gpus, settings, []);
    if (started === null) return null;
    const { placeholder, output } = started;
    placeholder.#starting = { until: now() + timeoutMs, output };
    return placeholder;
  }

  awaitReady(): void {
    if (this.#starting === null) return;
    const { until, output } = this.#starting;
    this.#starting = null;
    try {
      check(readLineUntil(output, until), until, this.#gpus);
    } catch (error) {
      this.#kill();
      throw error;
    } finally {
      closeSync(output);
    }
  }

  /**
   * As {@link start} for a worker, which starts one command after the other: without blocking, and until {@link commandStarted} it doesn't
   * look whether a command has come. @param variables show the GPUs
   */
  static async startIdle(
    gpus: readonly GPU[],
    settings: Settings,
    timeoutMs: number,
    variables: Readonly<Record<string, string | undefined>>,
  ): Promise<PlaceholderProcess | null> {
    const started = PlaceholderProcess.#spawn(gpus, settings, ['--idle'], {
      ...process.env,
      ...variables,
    });
    if (started === null) return null;
    const { placeholder, output } = started;
    try {
      const until = now() + timeoutMs;
      const line = await firstLine(output, timeoutMs);
      check(line, until, gpus);
      return placeholder;
    } catch (error) {
      placeholder.#kill();
      throw error;
    }
  }

  static #spawn(
    gpus: readonly GPU[],
    { placeholder: until, request: { memory } }: Settings,
    options: readonly string[],
    env?: NodeJS.ProcessEnv,
  ) {
    const admitting = gpus.filter(admitsPlaceholder);
    if (until === 'none' || admitting.length === 0) return null;
    const seconds = until === 'auto' ? Math.ceil(TIMEOUTS.placeholder / 1_000) : 0;
    const shared = memory === undefined ? [] : ['--shared'];
    const words = ['--seconds', String(seconds), ...shared, ...options];
    const { pid, input, output } = spawnPlaceholder(admitting, words, env);
    return { placeholder: new PlaceholderProcess(pid, input, admitting), output };
  }

  isOn(gpu: GPU): boolean {
    return this.#gpus.some(({ uuid }) => uuid === gpu.uuid);
  }

  /** The process may hang in the driver; not collected yet, so the number is still its own. */
  #kill(): void {
    process.kill(this.pid, 'SIGKILL');
    this.end();
  }

  /** A command gets under way: once its processes show on the GPUs, or after 60 s, this one ends. @returns false: it has ended */
  commandStarted(): boolean {
    return this.#say('g');
  }

  /** There is no command: it stays. @returns false: it has ended */
  commandEnded(): boolean {
    return this.#say('k');
  }

  #say(word: string): boolean {
    if (this.#ended || reap(this.pid)) {
      this.end();
      return false;
    }
    const isTold = ifPossible(() => writeSync(this.input, word) > 0, false);
    if (!isTold) this.end(); // the process is about to end
    return isTold;
  }

  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    closeSync(this.input);
    if (this.#starting !== null) closeSync(this.#starting.output);
    void waitForEnd(this.pid, Number.POSITIVE_INFINITY, false);
  }
}

/**
 * In other modes a GPU serves one process only: the placeholder would lock the command out. An MPS server would let both in;
 * but whether it would let this process in, only trying tells.
 */
function admitsPlaceholder({ computeMode }: GPU): boolean {
  return computeMode !== 'exclusive-process' && computeMode !== 'exclusive-thread';
}

/** The first line that it prints; '' if it ends before, or says nothing for too long. Closes the descriptor. */
function firstLine(descriptor: number, timeoutMs: number): Promise<string> {
  const { Socket } = process.getBuiltinModule('node:net'); // `gpu-owner run` doesn't need it
  return new Promise((resolve) => {
    const socket = new Socket({ fd: descriptor, readable: true, writable: false });
    let text = '';
    const done = (line: string) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(line);
    };
    const timer = setTimeout(() => done(''), timeoutMs);
    socket
      .setEncoding('utf8')
      .on('data', (chunk: string) => {
        text += chunk;
        if (text.includes('\n')) done(text.slice(0, text.indexOf('\n')));
      })
      .on('error', () => done(''))
      .on('end', () => done(''));
  });
}

function check(line: string, until: number, gpus: readonly GPU[]): void {
  const failure = failureIn(line, until);
  if (failure !== null) throw placeholderError(failure, gpus, '--placeholder none');
  if (line !== 'ready') warnOnce(SHOWS_ONE_INSTANCE);
}
