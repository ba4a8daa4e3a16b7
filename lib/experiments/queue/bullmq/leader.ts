import type { Management, Manager } from '../queue.ts';
import type { Connection } from './connection.ts';
import type { Leases } from './lock-renewal.ts';
import { randomBytes } from 'node:crypto';
import { bootId, pidNamespace, readProcessStat } from '../../../platform/index.ts';
import { readCount, readJSON, readRecord, readText } from '../records.ts';

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

/** Who manages, as Redis has it. */
interface Record {
  host: string;
  pid: number;
  /** Tells it from others of the same process. */
  of: string;
  /** Which process of which machine it is, for others there. Absent: of an older version. */
  process?: { boot: string; namespace: string; pid: number; start: string };
}

export function officeOf({ host, pid }: { host: string; pid: number }): string {
  const record: Record = {
    host,
    pid,
    of: randomBytes(8).toString('hex'),
    process: {
      boot: bootId(),
      namespace: pidNamespace() ?? '',
      pid: process.pid,
      start: startOf(process.pid),
    },
  };
  return JSON.stringify(record);
}

export function holderOf(text: string): { host: string; pid: number } {
  const { host, pid } = readRecord(text);
  return { host: readText(host), pid: readCount(pid) };
}

/**
 * Whether the process that manages has ended for certain: then nobody needs to wait until its time has run out. Only of processes
 * whose numbers mean the same here: of this boot of this machine, in this namespace.
 */
export function isDead(text: string): boolean {
  const who = readJSON(text);
  // Nobody gives a sign of life by a record that can't be read.
  if (typeof who !== 'object' || who === null) return true;
  const { process: its } = who as Record;
  if (typeof its !== 'object' || its === null || !Number.isSafeInteger(its.pid)) return false;
  if (its.boot === '' || its.namespace === '') return false;
  if (its.boot !== bootId() || its.namespace !== (pidNamespace() ?? '')) return false;
  try {
    process.kill(its.pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ESRCH';
  }
  // Its number may be another's by now.
  const start = startOf(its.pid);
  return start !== '' && its.start !== '' && start !== its.start;
}

/** When a process began, in ticks since boot; '' where that can't be told. */
function startOf(pid: number): string {
  const stat = readProcessStat(pid);
  // A zombie has ended, but its parent doesn't know yet.
  return stat?.state === 'Z' ? 'ended' : (stat?.startTicks ?? '');
}
