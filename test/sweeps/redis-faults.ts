import { sleep as pauseUnless } from '../../lib/platform/time.ts';
import { pause } from '../support/machine.ts';
import type { Random } from '../support/random.ts';
import type { RedisServer } from '../support/redis-server.ts';
import type { Network } from './queue/network.ts';
// Kills, stops and cuts off a Redis at random, one after the other, and mends it again.

export class RedisFaults {
  readonly #server: RedisServer;
  readonly #network: Network;
  readonly #random: Random;
  readonly #rest: number;
  readonly #lengths: readonly number[];
  /** Counts of what it did, by kind and length in seconds. */
  readonly deeds: Record<string, number> = {};
  readonly #calm = new AbortController();

  /** @param rest between two outages, in ms on average @param lengths how long outages last, in ms: one of these */
  constructor(
    server: RedisServer,
    network: Network,
    random: Random,
    rest: number,
    lengths: readonly number[],
  ) {
    this.#server = server;
    this.#network = network;
    this.#random = random;
    this.#rest = rest;
    this.#lengths = lengths;
  }

  /** Goes on until it is told to end; then Redis is there. */
  async run(): Promise<void> {
    for (;;) {
      await pauseUnless(this.#random.float(2 * this.#rest), this.#calm.signal);
      if (this.#calm.signal.aborted) return;
      const kind = this.#random.pick(['killed', 'stopped', 'cut off'] as const) ?? 'killed';
      const length = this.#random.pick(this.#lengths) ?? 0;
      const deed = `${kind} for ${length / 1000} s`;
      this.deeds[deed] = (this.deeds[deed] ?? 0) + 1;
      if (kind === 'killed') await this.#server.kill();
      else if (kind === 'stopped') this.#server.signal('SIGSTOP');
      else this.#network.cut();
      // An outage that has begun lasts as long as it was meant to.
      await pause(length);
      if (kind === 'killed') await this.#server.start();
      else if (kind === 'stopped') this.#server.signal('SIGCONT');
      else this.#network.mend();
    }
  }

  end(): void {
    this.#calm.abort();
  }
}
