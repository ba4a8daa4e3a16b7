import type { Management, Manager } from '../queue.ts';
import type { Connection } from './connection.ts';
import type { Leases } from './leases.ts';
import { holderOf, isDead, officeOf } from './office.ts';

/** Who writes the tables: see `Queue.manage`. */
export class ManagerLease {
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
    const who = officeOf({ host, pid });
    const before = await this.#connection.call<[string, string] | null>('manager');
    const dead = before !== null && isDead(before[0]) ? before[0] : '';
    const asked = this.#leases.time;
    if ((await this.#connection.call('manage', who, dead)) !== 1) return null;
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

  async current(): Promise<Manager | null> {
    const answer = await this.#connection.call<[string, string] | null>('manager');
    if (answer === null || isDead(answer[0])) return null;
    return { ...holderOf(answer[0]), until: Number(answer[1]) };
  }

  async release(): Promise<void> {
    const who = this.#who;
    if (who === null) return;
    this.#who = null;
    this.#leases.manage(null);
    await this.#connection.call('release', who);
  }
}
