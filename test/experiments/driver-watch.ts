// Looks at the simulated driver's process table all the time: the second witness, which no process writes itself.
import { type Machine, pause } from '../machine.ts';
import type { Testimony } from './witness.ts';

interface Sight {
  gpu: number;
  /** Those that were on it at the same time, twice in a row. */
  pids: number[];
}

const REST = 150; // ms

export class DriverWatch {
  readonly #machine: Machine;
  readonly #sights: Sight[] = [];
  #ended = false;
  looks = 0;

  constructor(machine: Machine) {
    this.#machine = machine;
  }

  async run(): Promise<void> {
    while (!this.#ended) {
      const first = this.#machine.allProcesses();
      this.looks++;
      // The tool reads one process after the other, and while it does a GPU may change hands.
      const again = first.some((pids) => pids.length > 1) ? this.#machine.allProcesses() : [];
      first.forEach((pids, gpu) => {
        const both = pids.filter((pid) => again[gpu]?.includes(pid));
        if (both.length > 1) this.#sights.push({ gpu, pids: both });
      });
      await pause(REST);
    }
  }

  end(): void {
    this.#ended = true;
  }

  /** Processes of two attempts on a GPU. Such as the log doesn't know (placeholders) don't count. */
  violations(log: readonly Testimony[]): string[] {
    const attempts = new Map<number, Set<number>>();
    for (const { pid, attempt } of log) attempts.set(pid, (attempts.get(pid) ?? new Set()).add(attempt));
    return this.#sights.flatMap(({ gpu, pids }) => {
      const known = pids.filter((pid) => attempts.has(pid));
      const [first, ...others] = known.map((pid) => [...(attempts.get(pid) as Set<number>)]);
      const apart = others.some((each) => !each.some((attempt) => first?.includes(attempt)));
      return apart ? [`the driver had processes of several attempts on GPU ${gpu}: ${known.join(', ')}`] : [];
    });
  }
}
