// What a benchmark leaves behind when it fails or is stopped: processes, in any session and under any parent. All of them have the
// benchmark's temporary directory in their environment.
import { readdirSync, readFileSync } from 'node:fs';
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
      } catch {} // it has just ended by itself
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
