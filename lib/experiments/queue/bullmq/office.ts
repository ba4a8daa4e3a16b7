import { randomBytes } from 'node:crypto';
import { bootId, pidNamespace, readProcessStat } from '../../../platform/index.ts';
import { readCount, readJSON, readRecord, readText } from '../records.ts';

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
