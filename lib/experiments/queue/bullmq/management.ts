import { randomBytes } from 'node:crypto';
import type { Management } from '../queue.ts';
import type { Connection } from './connection.ts';
import type { Leases } from './leases.ts';

/** Who writes the tables: see `Queue.manage`. */
export class Manager {
  readonly #connection: Connection;
  readonly #leases: Leases;
  /** As Redis has it, while this process manages. */
  #who: string | null = null;

  constructor(connection: Connection, leases: Leases) {
    this.#connection = connection;
    this.#leases = leases;
  }

  async become({ host, pid }: { host: string; pid: number }): Promise<Management | null> {
    if (this.#who !== null) return null;
    const who = JSON.stringify({ host, pid, of: randomBytes(8).toString('hex') });
    const asked = this.#leases.time;
    if ((await this.#connection.call('manage', who)) !== 1) return null;
    this.#who = who;
    const lost = new AbortController();
    this.#leases.manage(who, asked, () => {
      this.#who = null;
      lost.abort(new Error('the queue could not be reached for too long'));
    });
    return {
      lost: lost.signal,
      release: async () => {
        if (this.#who === who) await this.release();
      },
    };
  }

  async current(): Promise<{ host: string; pid: number } | null> {
    const text = await this.#connection.call<string | null>('manager');
    if (text === null) return null;
    const { host, pid } = JSON.parse(text) as { host: string; pid: number };
    return { host, pid };
  }

  async release(): Promise<void> {
    const who = this.#who;
    if (who === null) return;
    this.#who = null;
    this.#leases.manage(null);
    await this.#connection.call('release', who);
  }
}
