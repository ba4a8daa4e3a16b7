// What it costs that a hundred claimants wait: their processor time over a minute, all together.
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { environment, pause } from './measure.js';

const root = dirname(import.meta.dirname);
const WAITERS = 100;
const SECONDS = 60;

export async function idle() {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
  const env = environment({ GPU_OWNER_SIMULATE: '8', GPU_OWNER_SIMULATE_DIR: directory });
  const command = join(root, 'dist/gpu-owner.cjs');
  const start = (...args) =>
    spawn(process.execPath, [command, ...args], { env, stdio: ['pipe', 'pipe', 'ignore'] });
  const holder = start('hold', '-n', '8', '--placeholder', 'none');
  const waiters = [];
  try {
    await new Promise((resolve) => holder.stdout.once('data', resolve));
    for (let i = 0; i < WAITERS; i++) {
      waiters.push(start('run', '-n', String(1 + (i % 8)), '--placeholder', 'none', '--', 'true'));
      await pause(50);
    }
    await pause(5_000);
    const before = processorTime(waiters);
    await pause(SECONDS * 1000);
    const percent = ((processorTime(waiters) - before) / SECONDS) * 100;
    console.log(`${WAITERS} waiters over ${SECONDS} s: ${percent.toFixed(2)} % of one core together`);
    return { waiters: WAITERS, seconds: SECONDS, percentOfOneCore: percent };
  } finally {
    for (const child of [...waiters, holder]) child.kill('SIGKILL');
    await pause(200);
    rmSync(directory, { recursive: true });
  }
}

/** Seconds of all their threads, as the scheduler counts them; the ticks in /proc/PID/stat would overlook or overrate short runs. */
function processorTime(processes) {
  let nanoseconds = 0;
  for (const { pid } of processes) {
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      nanoseconds += Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]);
    }
  }
  return nanoseconds / 1e9;
}
