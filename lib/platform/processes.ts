import { readdirSync } from 'node:fs';
import { errorCode, ifPossible } from '../errors.ts';
import { isInUserNamespace, machineUid, readLink, readSmallFile } from './files.ts';
import { sanitize } from './text.ts';
import { now } from './time.ts';

/** A process as /proc describes it. */
export interface ProcessDescription {
  /** The command's name as `ps` shows it, or the program's where that is a thread's; harmless to print; null: not visible. */
  name: string | null;
  user: string | null;
  uid: number | null;
  /** dying: it will never run its own code again, but may still hold memory of the GPU. gone: no such process here. */
  alive: 'alive' | 'dying' | 'gone';
}

const MAX_COMMAND_LENGTH = 400;
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
  const stat = readProcessStat(pid, proc);
  // Mounted with hidepid, /proc doesn't show other users' processes: they aren't gone for that.
  if (stat === null) return exists(pid) ? HIDDEN : GONE;
  const status = readSmallFile(`${proc}/${pid}/status`) ?? '';
  const uid = uidOf(status);
  return {
    name: sanitize((MAIN_THREAD.test(stat.name) && programName(`${proc}/${pid}`)) || stat.name, 32) || null,
    user: uid === null ? null : userName(uid),
    uid,
    alive: isDying(stat, status) && !hasLivingThread(proc, pid, stat) ? 'dying' : 'alive',
  };
}

/** Some of what stands in /proc/PID/stat (proc(5)). */
interface ProcessStat {
  name: string;
  /** R, S, D, Z, T, …; frozen processes have that of others. */
  state: string;
  parent: number;
  group: number;
  session: number;
  /** The group in the foreground of its terminal; not positive: there is none that is known here. */
  foregroundGroup: number;
  flags: number;
  threads: number;
  /** When it began, in ticks since boot: with its number it names a process for good. */
  startTicks: string;
}

/** @param pid 'self', a number, or `PID/task/TID`. @returns null: no such process is visible */
export function readProcessStat(pid: number | string, proc = '/proc'): ProcessStat | null {
  const text = readSmallFile(`${proc}/${pid}/stat`);
  if (text === null) return null;
  // The name is in parentheses and may itself contain them, so it ends at the last one.
  const open = text.indexOf('(');
  const close = text.lastIndexOf(')');
  if (open < 0 || close < open) return null;
  const fields = text.slice(close + 2).split(' ');
  const number = (index: number) => Number(fields[index] ?? Number.NaN);
  return {
    name: text.slice(open + 1, close),
    state: fields[0] ?? '',
    parent: number(1),
    group: number(2),
    session: number(3),
    foregroundGroup: number(5),
    flags: number(6),
    threads: number(17),
    startTicks: fields[19] ?? '',
  };
}

/** Whether a process is suspended: by Ctrl-Z, SIGSTOP or a debugger. */
export function isStopped(pid: number): boolean {
  // Of a thousand waiters, each is asked for: the other fields take most of the time.
  const text = pid === 0 ? null : readSmallFile(`/proc/${pid}/stat`);
  return text !== null && /^\) [Tt] /.test(text.slice(text.lastIndexOf(')')));
}

/** Whether its terminal is this process's, as far as is known: in the background, it would draw over what its user types at the prompt. */
export function isInForeground(): boolean {
  const stat = readProcessStat('self');
  return stat === null || stat.foregroundGroup <= 0 || stat.group === stat.foregroundGroup;
}

/** The processes that /proc shows, for those who look through all. */
export function processIds(): number[] {
  return ifPossible(
    () => readdirSync('/proc').flatMap((name) => (/^\d+$/.test(name) ? [Number(name)] : [])),
    [],
  );
}

/** The last part of its first word, as it was started. */
function programName(directory: string): string | undefined {
  return readSmallFile(`${directory}/cmdline`)?.split('\0', 1)[0]?.split('/').at(-1);
}

/** The words of its command line; null: not visible, or it has none, as the kernel's own. */
export function processCommand(pid: number, proc = '/proc'): string | null {
  const words = readSmallFile(`${proc}/${pid}/cmdline`)?.split('\0') ?? [];
  return sanitize(words.join(' '), MAX_COMMAND_LENGTH) || null;
}

function isDying(stat: ProcessStat, status: string): boolean {
  if ('ZXx'.includes(stat.state) || (stat.flags & PF_EXITING) !== 0) return true;
  // A crashed process writes its core dump first: it will not come back either.
  if (/^CoreDumping:\t1/m.test(status)) return true;
  return [...status.matchAll(/^(?:SigPnd|ShdPnd):\t[0-9a-f]*?([0-9a-f]{1,4})$/gm)].some(
    ([, low]) => (Number.parseInt(low ?? '0', 16) & SIGKILL_BIT) !== 0,
  );
}

/** The main thread may end before others (`pthread_exit` in main): then the process looks like a zombie and lives. */
function hasLivingThread(proc: string, pid: number, main: ProcessStat): boolean {
  return (
    main.threads > 1 &&
    hasThread(proc, pid, (stat, id) => {
      if (id === String(pid)) return false;
      return !isDying(stat, readSmallFile(`${proc}/${pid}/task/${id}/status`) ?? '');
    })
  );
}

/** Whether a thread of a process computes, or waits for nothing but a processor. */
export function isRunnable(pid: number): boolean {
  return hasThread('/proc', pid, ({ state }) => state === 'R');
}

function hasThread(proc: string, pid: number, is: (stat: ProcessStat, id: string) => boolean): boolean {
  return threadsOf(pid, proc).some((path) => {
    const stat = readProcessStat(path, proc);
    return stat !== null && is(stat, path.split('/').at(-1) ?? '');
  });
}

/** The threads of a process below /proc, as `PID/task/TID`; none: it is gone, or not visible. */
export function threadsOf(pid: number, proc = '/proc'): string[] {
  return ifPossible(() => readdirSync(`${proc}/${pid}/task`).map((id) => `${pid}/task/${id}`), []);
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
    return errorCode(error) === 'EPERM';
  }
}

/** Linux allows no longer one (LOGIN_NAME_MAX). Names that are cut would make two users one. */
export const MAX_USER_NAME_LENGTH = 256;

let passwd: string | undefined;
const namesByUid = new Map<number, string>();

/**
 * The name of a user, from /etc/passwd (read once) or 'uid 1234'. Directory services are asked for the caller's own name only:
 * for others that would mean starting `getent` while a user waits.
 */
export function userName(uid: number): string {
  let name = namesByUid.get(uid);
  if (name === undefined) {
    passwd ??= readSmallFile('/etc/passwd') ?? '';
    name = nameIn(passwd, uid) ?? (uid === process.geteuid?.() ? ownName() : null) ?? `uid ${uid}`;
    namesByUid.set(uid, name);
  }
  return name;
}

const namesByGid = new Map<number, string>();

/** The name of a group, from /etc/group (read once for each) or 'gid 1234'. Directory services aren't asked. */
export function groupName(gid: number): string {
  let name = namesByGid.get(gid);
  if (name === undefined) {
    name = nameIn(readSmallFile('/etc/group') ?? '', gid) ?? `gid ${gid}`;
    namesByGid.set(gid, name);
  }
  return name;
}

/** From the text of /etc/passwd or /etc/group, which can be long; the first of several names for a uid counts, as for the system. */
export function nameIn(text: string, uid: number): string | null {
  const field = `:${uid}:`;
  for (let at = text.indexOf(field); at >= 0; at = text.indexOf(field, at + 1)) {
    // Behind the name and the password, or it is a group's number or part of something else.
    const [name, password, more] = text.slice(text.lastIndexOf('\n', at) + 1, at).split(':', 3);
    if (password === undefined || more !== undefined || name?.startsWith('#')) continue;
    const clean = sanitize(name, MAX_USER_NAME_LENGTH);
    if (clean) return clean;
  }
  return null;
}

/** The numbers of users and groups by their names, and when one wasn't found, in ms. */
const toldNumbers = new Map<string, number | { askedAt: number }>();
/** How long an unknown name isn't asked for again, in ms: that starts a program. */
const UNKNOWN_MS = 60_000;

/**
 * The number that a name has, which may be a number; null: there is no such name here. Directory services are asked for names that the file in
 * /etc lacks: once, or once a minute as long as the name is unknown.
 */
function numberOf(database: 'passwd' | 'group', name: string): number | null {
  const key = `${database} ${name}`;
  const told = toldNumbers.get(key);
  if (typeof told === 'number') return told;
  if (told !== undefined && now() - told.askedAt < UNKNOWN_MS) return null;
  const lines = (text: string | null) => (text ?? '').split('\n').map((line) => line.split(':', 3));
  let entry = lines(readSmallFile(`/etc/${database}`)).find(([each]) => each === name);
  if (entry === undefined && /^\d{1,10}$/.test(name)) return Number(name);
  if (entry === undefined) {
    const { spawnSync } = process.getBuiltinModule('node:child_process');
    [entry] = lines(spawnSync('getent', [database, '--', name], { encoding: 'utf8' }).stdout);
  }
  const number = /^\d+$/.test(entry?.[2] ?? '') ? Number(entry?.[2]) : null;
  toldNumbers.set(key, number ?? { askedAt: now() });
  return number;
}

/** The uid of a user by name, or by number; null: there is no such user here. */
export const findUid = (user: string) => numberOf('passwd', user);

/** The number of a group by its name, or its number; null: there is no such group here. */
export const findGid = (group: string) => numberOf('group', group);

/** Whether a user is one of these, each by name or by number; null: no, but some of the names are no user's here. */
export function isUserOf(uid: number, users: readonly string[]): boolean | null {
  if (users.some((user) => user === userName(uid) || user === String(uid))) return true;
  let isUnknown = false;
  for (const user of users) {
    const known = findUid(user);
    if (known === uid) return true;
    isUnknown ||= known === null;
  }
  return isUnknown ? null : false;
}

/** Whether a user is one of these or in one of these groups, each by name or by number. */
export function isNamedIn(
  uid: number,
  { users, groups }: { users: readonly string[]; groups: readonly string[] },
): boolean {
  const isMember = (group: string) => groupsOf(uid).has(findGid(group) ?? -1);
  return isUserOf(uid, users) === true || groups.some(isMember);
}

/** Whether /etc/passwd has a user, so that no directory service is asked about it. */
export function isLocalUser(uid: number): boolean {
  return nameIn(readSmallFile('/etc/passwd') ?? '', uid) !== null;
}

/** Which of these groups this process is in, each by name or by number. */
export function groupNames(wanted: readonly string[]): string[] {
  const own = groupsOf(machineUid());
  return wanted.filter((group) => own.has(findGid(group) ?? -1));
}

const groupsByUid = new Map<number, ReadonlySet<number>>();

/** The groups of a user, by number. For another user, directory services are asked, once. */
export function groupsOf(uid: number): ReadonlySet<number> {
  if (uid === process.geteuid?.() && !isInUserNamespace())
    return new Set([process.getegid?.() ?? -1, ...(process.getgroups?.() ?? [])]);
  let groups = groupsByUid.get(uid);
  if (groups === undefined) {
    const { spawnSync } = process.getBuiltinModule('node:child_process');
    const user = isLocalUser(uid) ? userName(uid) : String(uid);
    const { stdout } = spawnSync('id', ['-G', '--', user], { encoding: 'utf8' });
    groups = new Set((stdout ?? '').split(/\s+/).flatMap((each) => (each === '' ? [] : Number(each))));
    groupsByUid.set(uid, groups);
  }
  return groups;
}

function ownName(): string | null {
  return ifPossible(
    () => sanitize(process.getBuiltinModule('node:os').userInfo().username, MAX_USER_NAME_LENGTH) || null,
    null,
  );
}

const MAX_ANCESTORS = 4096;
let namespace: string | null | undefined;

/** Names the space in which this process's PIDs mean something, for all its life; null: /proc doesn't tell. */
export function pidNamespace(): string | null {
  if (namespace === undefined) namespace = readLink('/proc/self/ns/pid');
  return namespace;
}

/** A process and those above it, itself first, without the one that adopts all (PID 1); as far as /proc shows them, up to a limit. */
export function* lineage(pid: number, most: number): Generator<number> {
  for (let at = pid, i = 0; at > 1 && i < most; i++) {
    yield at;
    at = readProcessStat(at)?.parent ?? 0;
  }
}

/** Whether this process is one of these or was started by one of them, however indirectly; null: /proc doesn't show it. */
export function descendsFrom(pids: readonly unknown[]): boolean | null {
  let pid = process.pid;
  for (let i = 0; i < MAX_ANCESTORS; i++) {
    if (pids.includes(pid)) return true;
    const parent = readProcessStat(pid)?.parent;
    // Ended meanwhile, or hidden (hidepid).
    if (parent === undefined || !Number.isSafeInteger(parent)) return null;
    if (parent === 0) return false;
    pid = parent;
  }
  return null;
}

/** Signals a process group, if it hasn't ended. @param pid its leader's; undefined: it was not started */
export function killGroup(pid: number | undefined, signal: NodeJS.Signals): void {
  if (pid !== undefined) ifPossible(() => process.kill(-pid, signal), false);
}
