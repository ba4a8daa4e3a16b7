// Kills and stops the processes of a machine at random.
import { type Machine, pause } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import type { Random } from '../support/random.ts';
import { type Kind, type Process, processesOf } from './processes.ts';

/** How often each is struck, as against the others. */
export type Shares = Partial<Record<Kind, number>>;

/** Most processes are commands, and most of what can go wrong is in those that look after them. */
const EVERYBODY: Shares = { manager: 2, worker: 3, keeper: 3, watchdog: 2, command: 3, child: 2 };

export class Monkey {
  readonly #machine: Machine;
  readonly #random: Random;
  readonly #rest: number;
  readonly #longestStop: number;
  readonly #kinds: string[];
  readonly #stopped = new Map<number, number>();
  /** Counts of what it did, by signal and kind. */
  readonly deeds: Record<string, number> = {};
  #ended = false;

  /** @param rest ms between two deeds, on average @param longestStop for how many ms a process is stopped at most */
  constructor(machine: Machine, random: Random, rest: number, shares = EVERYBODY, longestStop = 2_500) {
    this.#machine = machine;
    this.#random = random;
    this.#rest = rest;
    this.#longestStop = longestStop;
    this.#kinds = Object.entries(shares).flatMap(([kind, share]) => Array<string>(share).fill(kind));
  }

  /** Goes on until it is told to end. */
  async run(): Promise<void> {
    while (!this.#ended) {
      await pause(this.#random.float(2 * this.#rest));
      this.#wake(performance.now());
      if (!this.#ended) this.#act();
    }
    this.#wake(Number.POSITIVE_INFINITY);
  }

  end(): void {
    this.#ended = true;
  }

  #act(): void {
    const all = processesOf(this.#machine);
    const kind = this.#random.pick(this.#kinds);
    const victim = this.#random.pick(all.filter((each) => each.kind === kind));
    const kill = this.#random.float() < 0.6;
    if (victim === undefined || (kill && !mayBeKilled(victim, all))) return;
    this.#strike(victim, kill ? 'SIGKILL' : 'SIGSTOP');
  }

  #strike({ pid, kind }: Process, signal: 'SIGKILL' | 'SIGSTOP'): void {
    if (!sendSignal(pid, signal)) return; // the process had just ended
    const deed = `${signal} ${kind}`;
    this.deeds[deed] = (this.deeds[deed] ?? 0) + 1;
    if (signal === 'SIGSTOP')
      this.#stopped.set(pid, performance.now() + this.#random.float(this.#longestStop));
  }

  #wake(now: number): void {
    for (const [pid, until] of this.#stopped) {
      if (now < until) continue;
      this.#stopped.delete(pid);
      sendSignal(pid, 'SIGCONT');
    }
  }
}

/**
 * A keeper and its watchdog stand in for each other. With both gone, and the worker as well, no process is left that could know
 * what belonged to a command: that isn't promised.
 */
export function mayBeKilled(victim: Process, all: readonly Process[]): boolean {
  if (victim.kind === 'keeper')
    return all.some(({ pid, kind }) => pid === victim.parent && kind === 'watchdog');
  if (victim.kind === 'watchdog')
    return all.some(({ parent, kind }) => parent === victim.pid && kind === 'keeper');
  return true;
}
