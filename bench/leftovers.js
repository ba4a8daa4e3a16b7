// Removes what a benchmark leaves behind when it fails or is stopped: processes, in any session and under any parent. All of
// them have the benchmark's temporary directory in their environment. And its directories: that one, and one in memory.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { pause } from './measure.js';

/** Kills them, and waits until they are gone, for two seconds at most. @returns how many there were */
export async function endLeftovers(directory) {
  const seen = new Set();
  for (let round = 0; round < 100; round++) {
    const found = leftovers(directory);
    if (found.length === 0) break;
    for (const pid of found) {
      seen.add(pid);
      try {
        process.kill(pid, 'SIGKILL');
      } catch {} // the process has just ended by itself
    }
    await pause(20);
  }
  return seen.size;
}

export function leftovers(directory) {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => {
      try {
        const variables = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
        return variables.includes(`TMPDIR=${directory}`);
      } catch {
        return false; // another user's, or gone
      }
    })
    .map(Number);
}

/** A directory that isn't on a disk, where the machine has such a thing, for what shouldn't wait for one. @param directory the benchmark's */
export function inMemory(directory) {
  if (!existsSync('/dev/shm')) return directory;
  mkdirSync(counterpart(directory), { recursive: true });
  return counterpart(directory);
}

export function removeDirectories(directory) {
  for (const each of [directory, counterpart(directory)]) removeDirectory(each);
}

const REMOVAL_TIMEOUT_MS = 5_000;

/** Removes a directory, also if a process that has been killed makes a file there by its last system call. */
export function removeDirectory(path) {
  for (const end = performance.now() + REMOVAL_TIMEOUT_MS; ; ) {
    try {
      // The retries of rmSync don't help: they never list a directory again.
      return rmSync(path, { recursive: true, force: true });
    } catch (error) {
      if (performance.now() > end) throw error;
    }
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
  }
}

function counterpart(directory) {
  return join('/dev/shm', `${basename(dirname(directory))}-${basename(directory)}`);
}
