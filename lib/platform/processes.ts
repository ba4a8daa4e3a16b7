import { readdirSync } from 'node:fs';
import { targetOf, textOf } from './small-files.ts';
import { sanitize } from './text.ts';

/** What /proc says of a process that uses a GPU. */
export interface ProcessDescription {
  /** The command's name as `ps` shows it, or the program's where that is a thread's; harmless to print; null: not visible. */
  name: string | null;
  user: string | null;
  uid: number | null;
  /** dying: it will never run its own code again, but may still hold memory of the GPU. gone: no such process here. */
  alive: 'alive' | 'dying' | 'gone';
}

const PF_EXITING = 0x4;
const SIGKILL_BIT = 1 << 8;
const GONE: ProcessDescription = { name: null, user: null, uid: null, alive: 'gone' };

/** How Node.js 24 and 26 name the main threads of all programs. */
const MAIN_THREAD = /^(node-)?MainThread$/;
const HIDDEN: ProcessDescription = { name: null, user: null, uid: null, alive: 'alive' };

/**
 * Looks a process up in /proc. A PID that the driver gives can belong to another container or have ended meanwhile:
 * this never throws. @param proc another mount of procfs, for tests.
 */
export function describeProcess(pid: number, proc = '/proc'): ProcessDescription {
  if (!Number.isSafeInteger(pid) || pid <= 0) return GONE;
  const stat = parseStat(textOf(`${proc}/${pid}/stat`));
  // Mounted with hidepid, /proc doesn't show other users' processes: they aren't gone for that.
  if (stat === null) return exists(pid) ? HIDDEN : GONE;
  const status = textOf(`${proc}/${pid}/status`) ?? '';
  const uid = uidOf(status);
  return {
    name: sanitize((MAIN_THREAD.test(stat.name) && programName(`${proc}/${pid}`)) || stat.name, 32) || null,
    user: uid === null ? null : userName(uid),
    uid,
    alive: isDying(stat, status) && !hasLivingThread(`${proc}/${pid}/task`, pid, stat) ? 'dying' : 'alive',
  };
}

interface Stat {
  name: string;
  state: string;
  flags: number;
  threads: number;
}

/** The name is in parentheses and may itself contain them, so it ends at the last one. */
function parseStat(text: string | null): Stat | null {
  if (text === null) return null;
  const open = text.indexOf('(');
  const close = text.lastIndexOf(')');
  if (open < 0 || close < open) return null;
  const fields = text.slice(close + 2).split(' ');
  return {
    name: text.slice(open + 1, close),
    state: fields[0] ?? '',
    flags: Number(fields[6] ?? 0),
    threads: Number(fields[17] ?? 1),
  };
}

/** Of its first word, as it was started. */
function programName(directory: string): string | undefined {
  return textOf(`${directory}/cmdline`)?.split('\0', 1)[0]?.split('/').at(-1);
}

function isDying(stat: Stat, status: string): boolean {
  if ('ZXx'.includes(stat.state) || (stat.flags & PF_EXITING) !== 0) return true;
  // A crashed process writes its core dump first: it will not come back either.
  if (/^CoreDumping:\t1/m.test(status)) return true;
  return [...status.matchAll(/^(?:SigPnd|ShdPnd):\t[0-9a-f]*?([0-9a-f]{1,4})$/gm)].some(
    ([, low]) => (Number.parseInt(low ?? '0', 16) & SIGKILL_BIT) !== 0,
  );
}

/** The main thread may end before others (`pthread_exit` in main): then the process looks like a zombie and lives. */
function hasLivingThread(directory: string, pid: number, main: Stat): boolean {
  if (main.threads < 2) return false;
  try {
    return readdirSync(directory).some((thread) => {
      if (thread === String(pid)) return false;
      const stat = parseStat(textOf(`${directory}/${thread}/stat`));
      return stat !== null && !isDying(stat, textOf(`${directory}/${thread}/status`) ?? '');
    });
  } catch {
    return false;
  }
}

function uidOf(status: string): number | null {
  const effective = /^Uid:\t\d+\t(\d+)/m.exec(status)?.[1];
  return effective === undefined ? null : Number(effective);
}

function exists(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

let passwd: string | undefined;
const namesByUid = new Map<number, string>();

/**
 * The name of a user, from /etc/passwd (read once) or 'uid 1234'. Directory services are asked for the caller's own
 * name only: for others that would mean starting `getent` while somebody waits.
 */
export function userName(uid: number): string {
  let name = namesByUid.get(uid);
  if (name === undefined) {
    passwd ??= textOf('/etc/passwd') ?? '';
    name = nameIn(passwd, uid) ?? (uid === process.geteuid?.() ? ownName() : null) ?? `uid ${uid}`;
    namesByUid.set(uid, name);
  }
  return name;
}

/** From the text of /etc/passwd, which can be long; the first of several names for a uid counts, as for the system. */
export function nameIn(text: string, uid: number): string | null {
  const field = `:${uid}:`;
  for (let at = text.indexOf(field); at >= 0; at = text.indexOf(field, at + 1)) {
    // Behind the name and the password, or it is a group's number or part of something else.
    const [name, password, more] = text.slice(text.lastIndexOf('\n', at) + 1, at).split(':', 3);
    if (password === undefined || more !== undefined || name?.startsWith('#')) continue;
    const clean = sanitize(name, 32);
    if (clean) return clean;
  }
  return null;
}

function ownName(): string | null {
  try {
    return sanitize(process.getBuiltinModule('node:os').userInfo().username, 32) || null;
  } catch {
    return null;
  }
}

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
