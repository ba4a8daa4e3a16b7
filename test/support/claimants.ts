// Processes that claim and give back until they are killed, and then start anew, before a witness (bench/witness.js).
import type { ChildProcess } from 'node:child_process';
import { chmodSync } from 'node:fs';
import { openWitness } from '../../bench/witness.js';
import { finished, type Machine } from './machine.ts';

/** How long a suspended one is, in ms. */
const SUSPENDED_MS = 1_000;

export class Claimants {
  readonly witness: ReturnType<typeof openWitness>;
  readonly #children: ChildProcess[] = [];
  readonly #errors: string[] = [];
  readonly #runners: Promise<void>[] = [];
  #isOver = false;
  /** The length of what they have printed. */
  printed = 0;

  constructor(machine: Machine) {
    this.witness = openWitness(machine.directory);
    chmodSync(this.witness.path, 0o666); // for other users
  }

  /** Runs a program again and again. */
  add(start: () => ChildProcess): void {
    this.#runners.push(this.#run(start, this.#runners.length));
  }

  async #run(start: () => ChildProcess, i: number): Promise<void> {
    while (!this.#isOver) {
      const child = start();
      this.#children[i] = child;
      child.stdout?.on('data', (text: Buffer) => {
        this.printed += text.length;
      });
      const { signal, code, stderr } = await finished(child);
      if (signal !== 'SIGKILL' && (code !== 0 || stderr !== '')) this.#errors.push(`${code} ${stderr}`);
    }
  }

  /** Kills one, or suspends it for a second. */
  trouble(): void {
    const child = this.#children[Math.floor(Math.random() * this.#children.length)];
    if (Math.random() < 0.5) this.#kill(child);
    else {
      child?.kill('SIGSTOP');
      setTimeout(() => child?.kill('SIGCONT'), SUSPENDED_MS);
    }
  }

  #kill(child: ChildProcess | undefined): void {
    if (child?.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
    this.witness.killed(child.pid);
    child.kill('SIGKILL');
  }

  /** Ends all. @returns how many GPUs and shares they had @throws what the witness says */
  async end(): Promise<{ holds: number; gpus: number; errors: string[] }> {
    this.#isOver = true;
    for (const child of this.#children) this.#kill(child);
    await Promise.all(this.#runners);
    return { ...this.witness.check(), errors: this.#errors };
  }
}
