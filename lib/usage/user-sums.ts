// Sums of each user that a server is asked for again and again.
import { now } from '../platform/index.ts';
import { readLedger } from './read.ts';
import { daysBetween, HOUR_MS, PassedTime } from './sums.ts';

/** The last days that {@link UserSums.gpuHours} is about, this one included. */
const DAYS = 30;
/** Lines between two turns of the event loop. */
const LINES_AT_ONCE = 1_000;
/** A ledger that takes longer to read, in ms, isn't read again for a multiple of that time: 100,000 leases take a second. */
const SHORT_MS = 200;
const REUSE = 50;

/** The sums of a user. */
export interface UserSums {
  uid: number;
  user: string;
  /** By local day, such as 2026-01-31. */
  gpuHours: Map<string, number>;
}

interface Answer {
  days: string[];
  users: UserSums[];
}

export class LedgerSums {
  readonly path: string;
  #answer: Promise<Answer> | null = null;

  constructor(path: string) {
    this.path = path;
  }

  /** The last days, and what each user used; those who ask together share an answer. @param gpus how many the machine has; null: unknown */
  read(gpus: number | null): Promise<Answer> {
    const began = now();
    const forget = () => {
      this.#answer = null;
    };
    this.#answer ??= this.#sum(gpus, Date.now()).finally(() => {
      const took = now() - began;
      if (took < SHORT_MS) forget();
      else setTimeout(forget, REUSE * took).unref();
    });
    return this.#answer;
  }

  async #sum(gpus: number | null, until: number): Promise<Answer> {
    const first = new Date(until);
    first.setDate(first.getDate() - DAYS + 1);
    const begin = first.setHours(0, 0, 0, 0);
    const passed = new PassedTime(begin, until);
    const users = new Map<number, UserSums>();
    let count = 0;
    for (const use of readLedger(this.path, begin, gpus, null, until).uses) {
      const { uid, user } = use;
      const sums = users.get(uid) ?? { uid, user, gpuHours: new Map<string, number>() };
      users.set(uid, sums);
      passed.take(use, (_, day, ms) => {
        sums.gpuHours.set(day, (sums.gpuHours.get(day) ?? 0) + ms / HOUR_MS);
      });
      if (++count % LINES_AT_ONCE === 0) await new Promise(setImmediate);
    }
    return {
      days: daysBetween(begin, until).map(({ key }) => key),
      users: [...users.values()].sort((a, b) => a.uid - b.uid),
    };
  }
}
