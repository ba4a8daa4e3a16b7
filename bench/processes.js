// The resources that running processes use, as the kernel counts them.
import { readdirSync, readFileSync } from 'node:fs';

/**
 * Measures a process. A page that three processes share counts a third in each of them as proportional memory.
 * @param {number} pid
 * @returns own and proportional memory in MB; threads; processor time in ms, and wake-ups, since its start
 */
export function usage(pid) {
  const rollup = readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1');
  /** @param {string} name */
  const megabytes = (name) =>
    (Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(rollup)?.[1]) * 1024) / 1e6;
  const threads = readdirSync(`/proc/${pid}/task`);
  let wakeups = 0;
  for (const thread of threads) {
    const status = readFileSync(`/proc/${pid}/task/${thread}/status`, 'latin1');
    wakeups += Number(/^voluntary_ctxt_switches:\s+(\d+)$/m.exec(status)?.[1]);
  }
  return {
    own: megabytes('Private_Clean') + megabytes('Private_Dirty'),
    proportional: megabytes('Pss'),
    threads: threads.length,
    milliseconds: threadTime(pid),
    wakeups,
  };
}

/**
 * Processor time of the threads that a process has, in ms, as the scheduler counts it.
 * @param {number} pid
 */
function threadTime(pid) {
  let nanoseconds = 0;
  for (const thread of readdirSync(`/proc/${pid}/task`)) {
    nanoseconds += Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'latin1').split(' ')[0]);
  }
  return nanoseconds / 1e6;
}

const TICK_MS = 10;

/**
 * Processor time of a process, in ms, with that of threads that have ended; rounded down to a tick.
 * @param {number} pid
 */
function tickTime(pid) {
  return statOf(pid).ticks * TICK_MS;
}

/**
 * Reads /proc/PID/stat, see proc_pid_stat(5). Times are in ticks.
 * @param {number} pid
 */
function statOf(pid) {
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  const end = text.lastIndexOf(')');
  const fields = text.slice(end + 2).split(' ');
  const [parent, user, system, started] = [1, 11, 12, 19].map((i) => Number(fields[i]));
  return { name: text.slice(text.indexOf('(') + 1, end), parent, ticks: user + system, started };
}

/**
 * Begins to measure the processor time of processes that do little. The scheduler counts that exactly, but not what is spent in threads
 * that end: when a process starts Node.js in its place and becomes small again, the ticks tell.
 * @param {readonly number[]} pids
 * @returns a function for the time of each since, in ms
 */
export function beginProcessorTime(pids) {
  const before = pids.map((pid) => ({ pid, threads: threadTime(pid), ticks: tickTime(pid) }));
  return () =>
    before.map(({ pid, threads, ticks }) =>
      Math.max(0, threadTime(pid) - threads, tickTime(pid) - ticks - TICK_MS),
    );
}

/**
 * The name that `ps` shows; '' once it has ended.
 * @param {number} pid
 */
export function nameOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/comm`, 'latin1').trim();
  } catch {
    return '';
  }
}
