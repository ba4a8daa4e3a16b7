import { closeSync } from 'node:fs';
import { native } from '../native.ts';
import { readProcessStat } from '../platform/index.ts';

/** A process that a descriptor of the kernel means: its number may be another process's later, the descriptor never is. */
export class HeldProcess {
  readonly pid: number;
  /** When it began, in ticks since boot. */
  readonly startTicks: string;
  readonly #descriptor: number;

  private constructor(pid: number, startTicks: string, descriptor: number) {
    this.pid = pid;
    this.startTicks = startTicks;
    this.#descriptor = descriptor;
  }

  /** null: there is no such process, or none whose start can be told. */
  static hold(pid: number): HeldProcess | null {
    const descriptor = native().processHold(pid);
    if (descriptor < 0) return null;
    // The number was this process's when its start was read, if it is alive afterwards.
    const stat = readProcessStat(pid);
    const held = new HeldProcess(pid, stat?.startTicks ?? '', descriptor);
    if (stat !== null && stat.startTicks !== '' && held.isAlive) return held;
    held.release();
    return null;
  }

  /** Whether the kernel can hold processes. */
  static get isSupported(): boolean {
    const descriptor = native().processHold(process.pid);
    if (descriptor >= 0) closeSync(descriptor);
    return descriptor >= 0;
  }

  /** A name that no other process of this boot has, unless it began within the same hundredth of a second. */
  get key(): string {
    return `${this.pid}:${this.startTicks}`;
  }

  /** Whether it hasn't been collected yet: as long, its number is its own. */
  get isAlive(): boolean {
    return native().processSignalHeld(this.#descriptor, 0) === 0;
  }

  /** @returns 0 or -errno, -ESRCH where it has ended */
  signal(signal: number): number {
    return native().processSignalHeld(this.#descriptor, signal);
  }

  release(): void {
    closeSync(this.#descriptor);
  }
}
