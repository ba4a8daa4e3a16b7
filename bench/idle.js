// What it costs that many claimants wait.
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { environment, pause, summarize } from './measure.js';

const root = dirname(import.meta.dirname);

export const idle = {
  title: 'Waiting in line',
  question:
    'How much of a processor do a hundred waiting claimants take while nothing happens, and how much memory?',
  async run(bench) {
    const { waiters, seconds } = bench.quick ? { waiters: 5, seconds: 2 } : { waiters: 100, seconds: 24 };
    const env = environment({
      GPU_OWNER_SIMULATE: '8',
      GPU_OWNER_SIMULATE_DIR: join(bench.directory, 'machines'),
    });
    const command = join(root, 'dist/gpu-owner.cjs');
    const start = (...args) =>
      spawn(process.execPath, [command, ...args], { env, stdio: ['pipe', 'pipe', 'ignore'] });
    const holder = start('hold', '-n', '8', '--placeholder', 'none');
    const line = [];
    try {
      await new Promise((resolve) => holder.stdout.once('data', resolve));
      for (let i = 0; i < waiters; i++) {
        line.push(start('run', '-n', String(1 + (i % 8)), '--placeholder', 'none', '--', 'true'));
        await pause(50);
      }
      await pause(3_000);
      bench.log(`${waiters} claimants wait for ${seconds} s`);
      const percent = [];
      for (let i = 0; i < seconds; i += 2) {
        const before = processorTime(line);
        await pause(2_000);
        percent.push(((processorTime(line) - before) / 2) * 100);
      }
      const label = `${waiters} claimants`;
      return [
        {
          name: 'processor',
          title: 'Processor time of all together, of one processor',
          unit: '%',
          note: 'intervals of 2 s, by the scheduler’s own count; simulated driver without latency',
          rows: [{ label, series: { 'gpu-owner run': summarize(percent) } }],
        },
        {
          name: 'memory',
          title: 'Memory of each',
          unit: 'MB',
          note: 'what is its own, shared pages in proportion',
          rows: [{ label, series: { 'gpu-owner run': summarize(line.map(({ pid }) => memory(pid))) } }],
        },
      ];
    } finally {
      for (const child of [...line, holder]) child.kill('SIGKILL');
    }
  },
};

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

/** In MB: a page that three processes share counts a third in each. */
function memory(pid) {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  return (Number(/^Pss:\s+(\d+) kB$/m.exec(text)[1]) * 1024) / 1e6;
}
