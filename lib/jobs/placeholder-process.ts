import { closeSync, writeSync } from 'node:fs';
import { driverLibraries } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { type GPU, label, librarySetting, SHOWS_ONE_INSTANCE } from '../gpus/index.ts';
import { native, nativeFile } from '../native.ts';
import { systemError, warnOnce } from '../platform/index.ts';
import { reap, registerHelper, waitForEnd } from './reaper.ts';

/** How long CUDA may take to start before it is given up on, in ms. Some seconds on a machine of many GPUs are normal. */
const CUDA_START_TIMEOUT_MS = 60_000;
/** With 'auto', how long a command may take to get to its GPUs, in seconds. */
const AUTO_SECONDS = 60;

/**
 * A process that keeps GPUs visibly taken for a command which hasn't reached them yet. It ends when its input is closed;
 * with 'auto' also when the command's processes show on the GPUs, or after 60 s.
 */
export class PlaceholderProcess {
  readonly pid: number;
  /** The end of its standard input that keeps it going. */
  readonly input: number;

  #ended = false;
  /** Where it says how it went, until it has. */
  #output: number | null;

  private constructor(pid: number, input: number, output: number | null = null) {
    registerHelper(pid);
    this.pid = pid;
    this.input = input;
    this.#output = output;
  }

  /**
   * Starts one for a claim that is yet to be decided, so that its start takes no time later. It touches no GPU, and loads nothing
   * of the driver's, before {@link take}. @throws ERR_PLACEHOLDER
   */
  static prepare(until: 'auto' | 'keep'): PlaceholderProcess {
    const { pid, input, output } = spawn([...argumentsFor(until), '--told']);
    return new PlaceholderProcess(pid, input, output);
  }

  /** After {@link prepare}. CUDA_VISIBLE_DEVICES of this process must show the GPUs. @throws ERR_PLACEHOLDER: it has ended then */
  take(gpus: readonly GPU[]): void {
    const words = [...uuids(gpus), ...VARIABLES.flatMap(variable), ''];
    try {
      tell(this.input, words.map((word) => `${word}\0`).join(''));
      check(native().processReadLine(this.#output as number, CUDA_START_TIMEOUT_MS), gpus);
    } catch (error) {
      process.kill(this.pid, 'SIGKILL'); // it may hang in the driver; not collected yet, so the number is still its own
      this.end();
      throw error;
    }
    this.#closeOutput();
  }

  /**
   * As {@link start} for a worker, which starts one command after the other: without blocking, and until {@link commandStarted} it doesn't
   * look whether a command has come. @param env shows the GPUs @throws ERR_PLACEHOLDER
   */
  static async startIdle(
    gpus: readonly GPU[],
    until: 'auto' | 'keep',
    env: NodeJS.ProcessEnv,
  ): Promise<PlaceholderProcess> {
    const { pid, input, output } = spawn([...argumentsFor(until), ...uuids(gpus), '--idle'], env);
    const placeholder = new PlaceholderProcess(pid, input);
    try {
      check(await firstLine(output), gpus);
      return placeholder;
    } catch (error) {
      process.kill(pid, 'SIGKILL');
      placeholder.end();
      throw error;
    }
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
    try {
      writeSync(this.input, word);
      return true;
    } catch {
      this.end(); // it is about to end
      return false;
    }
  }

  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    // One that hasn't been told its GPUs has nothing to give back, and may not have got as far as to notice.
    if (this.#output !== null) process.kill(this.pid, 'SIGKILL');
    this.#closeOutput();
    closeSync(this.input);
    void waitForEnd(this.pid, Number.POSITIVE_INFINITY, false);
  }

  #closeOutput(): void {
    if (this.#output !== null) closeSync(this.#output);
    this.#output = null;
  }
}

/** Variables that tell CUDA which GPUs there are, and how they are named. */
const VARIABLES = ['CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER'];

function variable(name: string): string[] {
  const value = process.env[name];
  return value === undefined ? ['--unset', name] : ['--set', `${name}=${value}`];
}

/** Where it has ended already, what it has said, or hasn't, tells why. */
function tell(descriptor: number, text: string): void {
  const bytes = Buffer.from(text);
  try {
    for (let done = 0; done < bytes.length; ) done += writeSync(descriptor, bytes, done);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EPIPE') throw error;
  }
}

function uuids(gpus: readonly GPU[]): string[] {
  return gpus.flatMap(({ uuid }) => ['--uuid', uuid]);
}

function argumentsFor(until: 'auto' | 'keep'): string[] {
  const { nvml, cuda } = driverLibraries();
  return [
    'gpu-owner-placeholder',
    ...(nvml ? ['--nvml', nvml] : []),
    ...(cuda ? ['--cuda', cuda] : []),
    '--seconds',
    String(until === 'auto' ? AUTO_SECONDS : 0),
  ];
}

function spawn(args: readonly string[], env?: NodeJS.ProcessEnv) {
  const path = nativeFile('gpu-owner-placeholder');
  const variables = env && Object.entries(env).map(([name, value]) => `${name}=${value ?? ''}`);
  const spawned = native().processSpawn(path, args, variables);
  if (spawned.error === 0) return spawned;
  throw new GPUOwnerError(
    'ERR_PLACEHOLDER',
    `${path} can't be started: ${systemError(spawned.error)}. Is the package complete?`,
  );
}

/** The first line that it prints; '' if it ends before, or says nothing for too long. Closes the descriptor. */
function firstLine(descriptor: number): Promise<string> {
  const { Socket } = process.getBuiltinModule('node:net'); // `gpu-owner run` doesn't need it
  return new Promise((resolve) => {
    const socket = new Socket({ fd: descriptor, readable: true, writable: false });
    let text = '';
    const done = (line: string) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(line);
    };
    const timer = setTimeout(() => done(''), CUDA_START_TIMEOUT_MS);
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

function check(line: string, gpus: readonly GPU[]): void {
  if (!/^ready( \d+)?$/.test(line)) throw failure(line, gpus);
  if (line !== 'ready') warnOnce(SHOWS_ONE_INSTANCE);
}

function failure(line: string, gpus: readonly GPU[]): GPUOwnerError {
  const [, code, stage, uuid, text] = /^failed (\d+) (\S+) (\S+) (.*)$/.exec(line) ?? [];
  const gpu = gpus.find((one) => one.uuid === uuid);
  const where = gpu === undefined ? '' : ` on GPU ${label(gpu)}`;
  const what =
    stage === 'load'
      ? `the CUDA driver library can't be used: ${text} (${librarySetting('GPU_OWNER_CUDA_LIBRARY')})`
      : `${text} (${stage}, CUDA code ${code})`;
  return new GPUOwnerError(
    'ERR_PLACEHOLDER',
    `the placeholder${where} failed: ${line === '' ? 'CUDA did not start' : what}. ` +
      'With `--placeholder none` the lease still holds, but tools that only look at the driver do not see it.',
    {
      gpus:
        gpu === undefined
          ? []
          : [{ index: gpu.index, instance: gpu.instance, uuid: gpu.uuid, reason: text ?? '' }],
    },
  );
}
