// Other machines as they are now: one login per host that stays open, and is tried again after a pause that grows.
import type { Host } from '../config/index.ts';
import { type HostAnswer, watchHosts } from '../fleet/index.ts';
import type { Job } from '../jobs/index.ts';
import { History, type LiveView, type MachineSnapshot, type MachineState } from './machine-view.ts';

export class FleetView implements LiveView {
  readonly machines: readonly HostView[];
  readonly hosts: readonly Host[];
  readonly #end = new AbortController();

  constructor(hosts: readonly Host[]) {
    this.hosts = hosts;
    this.machines = hosts.map(({ name }) => new HostView(name));
  }

  /**
   * @param words the arguments of gpu-owner there, which print a snapshot per line
   * @param quietMs a host that is silent for this time has failed
   * @param onNews called whenever something is new
   * @returns when it is stopped
   */
  async watch(words: readonly string[], quietMs: number, onNews: () => void): Promise<void> {
    const take = (answer: HostAnswer<'machines'>) => {
      this.machines.find(({ host }) => host === answer.host)?.take(answer);
      onNews();
    };
    await watchHosts(this.hosts, 'machines', words, quietMs, take, this.#end.signal);
  }

  stop(): void {
    this.#end.abort();
  }
}

class HostView implements MachineState {
  readonly host: string;
  readonly history = new History();
  jobs: readonly Job[] = [];
  snapshot: MachineSnapshot | null = null;
  problem: string | null = null;

  constructor(host: string) {
    this.host = host;
  }

  take({ records, error }: HostAnswer<'machines'>): void {
    if (error !== null) this.problem = error.message;
    for (const { problem, jobs = [], ...snapshot } of records ?? []) {
      this.jobs = jobs;
      // Checked as far as it is shown.
      this.snapshot = snapshot as MachineSnapshot;
      this.problem = problem;
      this.history.add(this.snapshot);
    }
  }
}
