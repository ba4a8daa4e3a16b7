import type { ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { problem } from '../../lib/config/index.ts';
import { errorCode, GPUOwnerError } from '../../lib/errors.ts';
import { formatBytes, now, sleep, timerMs } from '../../lib/platform/index.ts';
import { type Action, checkScenario, parseScenario, parseSpeed, type Step } from './scenario.ts';
import { reasonIn, Simulator } from './simulator.ts';

interface PlayOptions {
  /** As GPU_OWNER_SIMULATE names it; undefined: the scenario's, or that variable's. */
  machine?: string | undefined;
  /** How many times as fast as the file says; undefined: as the scenario says. */
  speed?: unknown;
  /** Plays it again and again. */
  loop: boolean;
  /** Leaves what steps have set. */
  keep: boolean;
  /** Ends the scenario early. */
  signal: AbortSignal;
  /** Told each step as it happens. @param seconds in the scenario's time */
  tell: (seconds: number, text: string) => void;
}

/** How long a step waits for its processes: one that hangs must not stop the scenario, which may lift the fault. */
const ANSWER_TIMEOUT_MS = 5_000;
/** From the end of its standard input to SIGKILL. */
const END_TIMEOUT_MS = 2_000;

/**
 * Plays a scenario on a simulated machine. The scenario's processes end with this process, however that ends.
 *
 * @returns how many processes could not start
 * @throws ERR_CONFIGURATION, with the line of a mistake, before anything happens
 */
export async function playScenario(path: string, options: PlayOptions): Promise<number> {
  const scenario = parseScenario(read(path), path);
  const named = scenario.machine?.includes('/') ? resolve(dirname(path), scenario.machine) : scenario.machine;
  const machine = options.machine ?? named ?? process.env.GPU_OWNER_SIMULATE;
  if (!machine) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      'on which machine? Use --machine, or a line `machine: h200x8` in the scenario; `gpu-owner simulate machines` lists some.',
    );
  }
  const simulator = new Simulator(machine);
  checkScenario(scenario, path, simulator.show(), (words) => simulator.checkSet(words));
  const speed = options.speed === undefined ? (scenario.speed ?? 1) : parseSpeed(options.speed, '--speed');
  const player = new Player(simulator, speed, options);
  try {
    do await player.play(scenario.steps);
    while (options.loop && !options.signal.aborted);
  } finally {
    await player.end();
  }
  return player.failed;
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw problem(path, null, `it can't be read (${errorCode(error)}); name a scenario in YAML`, error);
  }
}

class Player {
  /** Processes that could not start. */
  failed = 0;
  readonly #simulator: Simulator;
  readonly #speed: number;
  readonly #options: PlayOptions;
  readonly #processes = new Map<string, Occupant[]>();
  #time = 0;

  constructor(simulator: Simulator, speed: number, options: PlayOptions) {
    this.#simulator = simulator;
    this.#speed = speed;
    this.#options = options;
  }

  async play(steps: readonly Step[]): Promise<void> {
    const { signal } = this.#options;
    const begun = now();
    for (const { at, action } of steps) {
      const left = () => begun + at / this.#speed - now();
      while (left() > 0 && !signal.aborted) await sleep(timerMs(left()), signal);
      if (signal.aborted) return;
      this.#time = at;
      await this.#act(action);
    }
    await this.end();
  }

  /** Ends all processes and undoes what steps have set. */
  async end(): Promise<void> {
    await Promise.all([...this.#processes.keys()].map((process) => this.#end(process)));
    if (!this.#options.keep) this.#simulator.reset();
  }

  async #act(action: Action): Promise<void> {
    switch (action.kind) {
      case 'occupy':
        return this.#occupy(action);
      case 'memory':
        this.#tell(`memory   ${action.process} to ${formatBytes(action.bytes)}`);
        await this.#each(action.process, (occupant) => occupant.resize(action.bytes));
        return;
      case 'end':
        // The program may have ended by itself, for want of memory.
        if (this.#processes.has(action.process)) this.#tell(`end      ${action.process}`);
        return this.#end(action.process);
      case 'set':
        this.#tell(`set      ${action.about}`);
        this.#simulator.set(action.words);
    }
  }

  async #occupy({ process, gpus, args, about }: Extract<Action, { kind: 'occupy' }>): Promise<void> {
    this.#tell(`occupy   ${about}`);
    const { signal } = this.#options;
    const occupants = gpus.map((gpu) => new Occupant(this.#simulator, [gpu, ...args], signal));
    this.#processes.set(process, occupants);
    for (const occupant of occupants) {
      occupant.ended.then((reason) => {
        // Ctrl-C in a terminal reaches it, too.
        if (occupant.isToldToEnd || signal.aborted) return;
        if (!occupant.isReady) this.failed++;
        this.#tell(`${occupant.isReady ? 'ended   ' : 'failed  '} ${process}: ${reason}`);
        const left = (this.#processes.get(process) ?? []).filter((other) => other !== occupant);
        if (left.length > 0) this.#processes.set(process, left);
        else this.#processes.delete(process);
      });
    }
    await this.#each(process, (occupant) => occupant.started());
  }

  async #end(process: string): Promise<void> {
    const ended = this.#each(process, (occupant) => occupant.end());
    this.#processes.delete(process);
    await ended;
  }

  async #each(process: string, act: (occupant: Occupant) => Promise<void>): Promise<void> {
    await Promise.all((this.#processes.get(process) ?? []).map(act));
  }

  #tell(text: string): void {
    this.#options.tell(this.#time / 1000, text);
  }
}

/**
 * A process of `simulate occupy`. The process ends when its standard input closes, so that none is left when this process is
 * killed.
 */
class Occupant {
  isReady = false;
  isToldToEnd = false;
  /** Resolves with the reason. */
  readonly ended: Promise<string>;
  readonly #child: ChildProcess;
  readonly #signal: AbortSignal;

  constructor({ program, env }: Simulator, args: readonly string[], signal: AbortSignal) {
    this.#signal = signal;
    const { spawn } = process.getBuiltinModule('node:child_process');
    this.#child = spawn(program, ['occupy', ...args], { env, stdio: ['pipe', 'pipe', 'pipe'] });
    this.#child.stdin?.on('error', () => {}); // the process has ended
    let stderr = '';
    this.#child.stderr?.setEncoding('utf8').on('data', (text) => {
      stderr += text;
    });
    this.ended = new Promise((resolveEnded) => {
      this.#child.once('error', ({ message }) => resolveEnded(message));
      this.#child.once('close', (code, signal) =>
        resolveEnded(reasonIn(stderr) || (signal ? `killed by ${signal}` : `exit code ${code}`)),
      );
    });
    this.#child.stdout?.on('data', () => {
      this.isReady = true;
    });
  }

  /** Resolves when it is visible, has failed, or hangs. */
  started(): Promise<void> {
    return this.#answer();
  }

  /** Resolves when it has, has ended for want of memory, or hangs. */
  resize(bytes: number): Promise<void> {
    this.#child.stdin?.write(`memory ${bytes}\n`);
    return this.#answer();
  }

  /** Waits for the answer: the process answers each request with a line. */
  async #answer(): Promise<void> {
    const done = new AbortController();
    const answered = new Promise<void>((resolveAnswered) => {
      this.#child.stdout?.once('data', () => resolveAnswered());
    });
    await Promise.race([
      answered,
      this.ended,
      sleep(ANSWER_TIMEOUT_MS, AbortSignal.any([done.signal, this.#signal])),
    ]);
    done.abort();
  }

  async end(): Promise<void> {
    this.isToldToEnd = true;
    this.#child.stdin?.end();
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), END_TIMEOUT_MS);
    await this.ended;
    clearTimeout(timer);
  }
}
