// Removes what a benchmark leaves behind when it fails or is stopped: processes, in any session and under any parent. All of
// them have a temporary directory of the benchmark in their environment.
import { readdirSync, readFileSync, rmSync } from 'node:fs';

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Kills them, and waits until they are gone, for two seconds at most. */
export async function endLeftovers(directory) {
  for (let round = 0; round < 100; round++) {
    const found = leftovers(directory);
    if (found.length === 0) break;
    for (const pid of found) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {} // the process has just ended by itself
    }
    await pause(20);
  }
}

export function leftovers(directory) {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => {
      try {
        const variables = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
        return variables.some((variable) => variable.startsWith(`TMPDIR=${directory}`));
      } catch {
        return false; // another user's, or gone
      }
    })
    .map(Number);
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
