import { readdirSync, readFileSync } from 'node:fs';
import { ifPossible } from '../errors.ts';
import { native } from '../native.ts';
import { now, processIds, readProcessStat, warnOnce } from '../platform/index.ts';

/** Processes that this process has started and collects itself. Not those of node:child_process, which are in its session. */
const own = new Set<number>();
/** Own processes that aren't needed after this process. */
const helpers = new Set<number>();
let adopting = false;
let watching = false;
/** In ms. */
const MAX_POLL_MS = 1_000;
/** How long to wait for a process to end after SIGKILL, in ms. */
const KILL_TIMEOUT_MS = 1_000;

/**
 * From now on, processes of tasks whose keeper and watchdog were both killed become children of this process, so that it can
 * end them. Processes in a session of their own must be registered with {@link registerChild}.
 */
export function adoptOrphans(): void {
  if (adopting) return;
  adopting = native().processAdopt();
  if (adopting) return;
  warnOnce(
    "gpu-owner can't track processes that outlive their parents here (PR_SET_CHILD_SUBREAPER failed; does a seccomp " +
      'filter forbid it?): processes that a task leaves running are not ended, and may use its GPU beside the next task.',
  );
}

/** @param pid a child that isn't node:child_process's; it is to be collected */
export function registerChild(pid: number): void {
  own.add(pid);
}

/** @param pid as in {@link registerChild}; at this process's end, the child is killed and collected */
export function registerHelper(pid: number): void {
  registerChild(pid);
  helpers.add(pid);
  if (!watching) process.on('exit', () => endHelpers());
  watching = true;
}

/**
 * Kills helpers and collects them: no other process may do that for one that ends or becomes another, as in containers whose
 * process 1 collects no orphans. Doesn't wait for ever: one that hangs in the driver doesn't end. @param except the PID of one
 * that stays
 */
export function endHelpers(except?: number): void {
  const pids = [...helpers].filter((pid) => pid !== except);
  // Not collected yet: the numbers are still their own.
  for (const pid of pids) process.kill(pid, 'SIGKILL');
  const end = now() + KILL_TIMEOUT_MS;
  for (let pause = 0.1; !pids.every(reap) && now() < end; pause = Math.min(2 * pause, 4)) {
    native().processSleep(pause);
  }
}

/** Takes note of a child's end. @returns whether it is gone */
export function reap(pid: number): boolean {
  if (!native().processCollect(pid)) return false;
  own.delete(pid);
  helpers.delete(pid);
  return true;
}

/**
 * Waits for the end of a child that is about to end. @param matters whether this process stays for it @returns false: it doesn't
 * end
 */
export async function waitForEnd(pid: number, milliseconds: number, matters = true): Promise<boolean> {
  const end = now() + milliseconds;
  for (let looks = 0; !reap(pid); looks++) {
    if (now() > end) return false;
    // A process closes its files, of which we learn, a moment before it has ended.
    if (looks < 20) await new Promise((resolve) => setImmediate(resolve));
    else await sleep(Math.min(looks - 19, MAX_POLL_MS), matters);
  }
  return true;
}

/**
 * Kills what has become this process's without being started by it, until there is nothing left. That can only come from tasks
 * without keeper and watchdog: all others have a nearer parent to fall to. A command has a session of its own, and none of its
 * processes can ever come back into ours: processes in ours aren't touched.
 */
export async function endOrphans(isKeeper: (pid: number) => boolean): Promise<void> {
  for (let pause = 1; ; pause = Math.min(2 * pause, 100)) {
    const orphans = children().filter((pid) => !own.has(pid) && !isKeeper(pid) && !isInOurSession(pid));
    const alive = orphans.filter((pid) => {
      // The process may have another user's rights now, or be gone.
      ifPossible(() => process.kill(pid, 'SIGKILL'), false);
      return !native().processCollect(pid);
    });
    // Killed processes leave their own children to us.
    if (orphans.length === 0) return;
    await sleep(alive.length === 0 ? 0 : pause);
  }
}

function sleep(milliseconds: number, matters = true): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    if (!matters) timer.unref();
  });
}

function children(): number[] {
  const childrenOf = (thread: string) =>
    readFileSync(`/proc/self/task/${thread}/children`, 'latin1').split(' ').filter(Boolean).map(Number);
  // Kernels may lack these lists, and a thread may have just ended.
  const listed = ifPossible(() => readdirSync('/proc/self/task').flatMap(childrenOf), null);
  return listed ?? processIds().filter((pid) => readProcessStat(pid)?.parent === process.pid);
}

function isInOurSession(pid: number): boolean {
  const session = readProcessStat(pid)?.session;
  return session === undefined || session === readProcessStat('self')?.session;
}
