// The cost of many waiting claimants.
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { environment, pause, summarize } from './measure.js';

const root = dirname(import.meta.dirname);

export const idle = {
  title: 'Waiting',
  question: 'How much processor time and memory do a hundred waiting claimants use while nothing happens?',
  async run(bench) {
    const { waiters, settle, intervals, length } = bench.quick
      ? { waiters: 5, settle: 200, intervals: 2, length: 200 }
      : { waiters: 100, settle: 3_000, intervals: 10, length: 2_000 };
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
      await new Promise((resolve, reject) => {
        holder.stdout.once('data', resolve);
        holder.once('exit', (code) => reject(new Error(`gpu-owner hold exited with ${code}`)));
      });
      for (let i = 0; i < waiters; i++) {
        line.push(start('run', '-n', String(1 + (i % 8)), '--placeholder', 'none', '--', 'true'));
        await pause(30);
      }
      await pause(settle);
      bench.log(`${waiters} claimants wait for ${(intervals * length) / 1000} s`);
      const percent = [];
      for (let i = 0; i < intervals; i++) {
        const before = processorTime(line);
        await pause(length);
        percent.push(((processorTime(line) - before) / length) * 1e5);
      }
      const label = `${waiters} claimants`;
      return [
        {
          name: 'processor',
          title: 'Processor time of all claimants together, of one processor',
          unit: '%',
          note: `intervals of ${length / 1000} s, as counted by the scheduler; simulated driver without latency`,
          rows: [{ label, series: { 'gpu-owner run': summarize(percent) } }],
        },
        {
          name: 'memory',
          title: 'Memory of each claimant',
          unit: 'MB',
          note: 'private pages, and shared pages in proportion',
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
