import { targetOf, textOf } from '../platform/index.ts';

const MOST_ANCESTORS = 4096;

let namespace: string | null | undefined;

/** Names the space in which this process's PIDs mean something, for all its life; null: /proc doesn't tell. */
export function pidNamespace(): string | null {
  if (namespace === undefined) namespace = targetOf('/proc/self/ns/pid');
  return namespace;
}

/** Whether this process is one of these or was started by one of them, however indirectly; null: /proc doesn't show it. */
export function descendsFrom(pids: readonly unknown[]): boolean | null {
  let pid = process.pid;
  for (let i = 0; i < MOST_ANCESTORS; i++) {
    if (pids.includes(pid)) return true;
    const parent = parentOf(pid);
    if (parent === null) return null;
    if (parent === 0) return false;
    pid = parent;
  }
  return null;
}

/** null: it has ended meanwhile, or it is hidden (hidepid). 0: it has none here. */
function parentOf(pid: number): number | null {
  const stat = textOf(`/proc/${pid}/stat`);
  if (stat === null) return null;
  // The name is in parentheses and may contain them itself. Then come the state and the parent.
  const parent = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]);
  return Number.isSafeInteger(parent) ? parent : null;
}
