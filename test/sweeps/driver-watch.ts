// Looks at the simulated driver's process table all the time: the second witness, which no process writes itself.
import { type Machine, pause } from '../support/machine.ts';
import { livesIn, type Testimony } from './witness.ts';

interface Sight {
  /** As in the log: on the monotonic clock, in ms. */
  at: number;
  gpu: number;
  /** Processes that were on it at the same time, twice in a row. */
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
      const at = Number(process.hrtime.bigint()) / 1e6;
      const first = this.#machine.allProcesses();
      this.looks++;
      // The tool reads one process after the other, and while it does a GPU may change hands.
      const again = first.some((pids) => pids.length > 1) ? this.#machine.allProcesses() : [];
      first.forEach((pids, gpu) => {
        const both = pids.filter((pid) => again[gpu]?.includes(pid));
        if (both.length > 1) this.#sights.push({ at, gpu, pids: both });
      });
      await pause(REST);
    }
  }

  end(): void {
    this.#ended = true;
  }

  /** Processes of two attempts on a GPU. Such as the log doesn't know at that time (placeholders) don't count. */
  violations(log: readonly Testimony[]): string[] {
    const lives = livesIn(log);
    return this.#sights.flatMap(({ at, gpu, pids }) => {
      const known = lives.filter(({ first, from, to }) => pids.includes(first.pid) && from <= at && at <= to);
      const attempts = new Set(known.map(({ first }) => first.attempt));
      const who = known.map(({ first: { pid, name, attempt } }) => `${pid} of ${name}, ${attempt}`);
      return attempts.size > 1 ? [`the driver had several attempts on GPU ${gpu}: ${who.join('; ')}`] : [];
    });
  }
}
