import { randomBytes } from 'node:crypto';
import { bootId, pidNamespace, readProcessStat } from '../../../platform/index.ts';
import type { Management, Manager } from '../queue.ts';
import { readCount, readJSON, readRecord, readText } from '../records.ts';
import type { Connection } from './connection.ts';
import type { LockRenewal } from './lock-renewal.ts';

/** Elects the one process that writes the tables: see `Queue.manage`. */
export class Leadership {
  readonly #connection: Connection;
  readonly #renewal: LockRenewal;
  /** The record in Redis while this process is the leader. */
  #record: string | null = null;

  constructor(connection: Connection, renewal: LockRenewal) {
    this.#connection = connection;
    this.#renewal = renewal;
  }

  /** @returns null: another process is the leader */
  async take({ host, pid }: { host: string; pid: number }): Promise<Management | null> {
    if (this.#record !== null) return null;
    const record = leaderRecord({ host, pid });
    const before = await this.#connection.call<[string, string] | null>('manager');
    const dead = before !== null && isDead(before[0]) ? before[0] : '';
    const asked = this.#renewal.time;
    if ((await this.#connection.call('manage', record, dead)) !== 1) return null;
    this.#record = record;
    const lost = new AbortController();
    this.#renewal.lead(record, asked, () => {
      this.#record = null;
      lost.abort(new Error('the queue could not be reached for too long'));
    });
    return {
      lost: lost.signal,
      release: async () => {
        if (this.#record === record) await this.release();
      },
    };
  }

  async current(): Promise<Manager | null> {
    const answer = await this.#connection.call<[string, string] | null>('manager');
    if (answer === null || isDead(answer[0])) return null;
    const { host, pid } = readRecord(answer[0]);
    return { host: readText(host), pid: readCount(pid), until: Number(answer[1]) };
  }

  async release(): Promise<void> {
    const record = this.#record;
    if (record === null) return;
    this.#record = null;
    this.#renewal.lead(null);
    await this.#connection.call('release', record);
  }
}

/** The leader as Redis has it. */
interface LeaderRecord {
  host: string;
  pid: number;
  /** Tells it from other leaders of the same process. */
  of: string;
  /** The process, for others on its machine. Absent: written by an older version. */
  process?: { boot: string; namespace: string; pid: number; start: string };
}

function leaderRecord({ host, pid }: { host: string; pid: number }): string {
  const record: LeaderRecord = {
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

/**
 * Whether the leader's process has certainly ended: then nobody needs to wait until its lock expires. Known only of processes whose PIDs
 * mean the same here: of this boot of this machine, in this namespace.
 */
function isDead(text: string): boolean {
  const record = readJSON(text);
  // A process whose record can't be read doesn't renew it.
  if (typeof record !== 'object' || record === null) return true;
  const { process: its } = record as LeaderRecord;
  if (typeof its !== 'object' || its === null || !Number.isSafeInteger(its.pid)) return false;
  if (its.boot === '' || its.namespace === '') return false;
  if (its.boot !== bootId() || its.namespace !== (pidNamespace() ?? '')) return false;
  try {
    process.kill(its.pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ESRCH';
  }
  // Its PID may be another process's by now.
  const start = startOf(its.pid);
  return start !== '' && its.start !== '' && start !== its.start;
}

/** When a process began, in ticks since boot; '' where that can't be told. */
function startOf(pid: number): string {
  const stat = readProcessStat(pid);
  // A zombie has ended, but its parent doesn't know yet.
  return stat?.state === 'Z' ? 'ended' : (stat?.startTicks ?? '');
}
