// Signals for processes, and what the kernel says of them. A process that a test looks at may end at any moment: nothing here fails for that
// unless its name says so.
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { until } from './time.ts';

/** Sends a signal. A process that has ended already is no error. @param pid or -pid, for a group @returns whether it was there */
export function sendSignal(pid: number | undefined, signal: NodeJS.Signals | 0): boolean {
  // These would reach this process, its group, or everybody.
  if (pid === undefined || !Number.isInteger(pid) || Math.abs(pid) <= 1 || Math.abs(pid) === process.pid) {
    throw new Error(`${pid} is no process to send ${signal} to`);
  }
  try {
    return process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    return false;
  }
}

/** Sends a signal to a process that must not have ended; a zombie will do. */
export function signalLiving(pid: number | undefined, signal: NodeJS.Signals): void {
  if (!sendSignal(pid, signal)) throw new Error(`process ${pid} ended before it got ${signal}`);
}

/** Sends a signal to each of them, also where the death of one takes others with it. */
export function signalAll(pids: readonly number[], signal: NodeJS.Signals): void {
  for (const pid of pids) sendSignal(pid, signal);
}

/** Stops what `find` finds until it finds nothing new, kills all of it, and waits until none of it lives. */
export async function killAll(find: () => readonly number[]): Promise<void> {
  const found = new Set<number>();
  await until(
    () => {
      const before = found.size;
      for (const pid of find()) found.add(pid);
      signalAll([...found], 'SIGSTOP');
      if (found.size > before) return false;
      signalAll([...found], 'SIGKILL');
      return ![...found].some(isAlive);
    },
    () => `the end of processes ${[...found].filter(isAlive).join()}`,
  );
}

/** Whether there is such a process; a zombie is. */
export function isThere(pid: number): boolean {
  return sendSignal(pid, 0);
}

/** Whether the process lives: a zombie doesn't (orphans may stay uncollected where the tests run). */
export function isAlive(pid: number): boolean {
  return !['Z', 'X', null].includes(processState(pid));
}

/** The state of a process ('T' = stopped, 'Z' = zombie), or null. */
export function processState(pid: number): string | null {
  return stat(pid)?.state ?? null;
}

interface Stat {
  name: string;
  state: string;
  parent: number;
  session: number;
  /** Processor time, in hundredths of a second. */
  ticks: number;
}

export function stat(pid: number): Stat | null {
  const text = read(pid, 'stat');
  if (text === '') return null;
  const name = text.slice(text.indexOf('(') + 1, text.lastIndexOf(')'));
  // proc_pid_stat(5), from the third field on. The name before may have spaces and parentheses.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const [parent, , session] = fields.slice(1).map(Number) as [number, number, number];
  return {
    name,
    state: fields[0] as string,
    parent,
    session,
    ticks: Number(fields[11]) + Number(fields[12]),
  };
}

/** None, once it has ended. */
export function childrenOf(pid: number): number[] {
  return read(pid, `task/${pid}/children`).split(' ').filter(Boolean).map(Number);
}

/** The process and everything below it, from the top. */
export function treeOf(pid: number): number[] {
  return [pid, ...childrenOf(pid).flatMap(treeOf)];
}

/** Finds the processes, zombies and this one left out, that have this text in their environment. */
export function processesWith(text: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => pid !== process.pid && read(pid, 'environ').includes(text) && isAlive(pid));
}

/** The command line of a process; none once it has ended. */
export function wordsOf(pid: number): string[] {
  return read(pid, 'cmdline').split('\0').slice(0, -1);
}

/** As `ps` shows it; '' once it has ended. */
export function nameOf(pid: number): string {
  return read(pid, 'comm').trim();
}

/** Can system calls of programs be traced here? Otherwise: why not. */
export function whyNoTracing(): string | null {
  return spawnSync('strace', ['-f', 'true']).status === 0
    ? null
    : 'strace is not installed, or may not trace';
}

function read(pid: number, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1');
  } catch (error) {
    // A process can also end between open and read.
    // Another user's process shows nothing.
    if (!['ENOENT', 'ESRCH', 'EACCES', 'EPERM'].includes((error as NodeJS.ErrnoException).code ?? ''))
      throw error;
    return '';
  }
}
