// The cost of the processes that stay while a command runs under `gpu-owner run`: memory, processor time and wake-ups over a
// minute. No wake-up within the minute is the aim, so it has to be a whole one; it passes beside the other benchmarks.
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { environment, pause, summarize } from './measure.js';
import { statOf, TICK_MS, usage } from './processes.js';

const root = join(import.meta.dirname, '..');
const JOBS = { auto: 'run', keep: 'run --placeholder keep' };
/** By the names that the processes have in `ps`. */
const PARTS = {
  'gpu-owner': 'front',
  'gpu-owner-group': 'front, watching its group',
  'gpu-owner-keep': 'keeper',
  'gpu-owner-place': 'placeholder',
};
/** Until everything has started. */
const SETTLING = 2_000;
const LIMIT_MB = 4;
/** For what hangs; in ms. */
const START_LIMIT = 40_000;

export const keeper = {
  title: 'While a command runs',
  question: 'How much processor time and memory do the processes use that keep a GPU for a command?',

  async run(bench) {
    const jobs = await begin(bench);
    try {
      // By default the placeholder ends itself after 60 s without a process on its GPU, and on a busy machine all of this may have taken
      // seconds to start; the keeper looks at its files every 60 s.
      const left = 50 - Math.max(...jobs.map(({ age }) => age));
      const seconds = bench.quick ? { auto: 2, keep: 3 } : { auto: Math.floor(left), keep: 61 };
      bench.log?.(`commands run under gpu-owner for ${seconds.keep} s`);
      const began = Date.now();
      const minute = [];
      for (const job of jobs) {
        await pause(Math.max(0, began + seconds[job.placeholder] * 1000 - Date.now()));
        minute.push({ ...job, parts: job.parts.map((part) => ({ ...part, after: usage(part.pid) })) });
      }
      return tables(minute, seconds);
    } finally {
      for (const { child, parts } of jobs) {
        child.kill('SIGKILL');
        for (const { pid } of parts) end(pid);
      }
    }
  },
};

async function begin(bench) {
  const env = environment({
    GPU_OWNER_SIMULATE: '8',
    GPU_OWNER_SIMULATE_DIR: join(bench.directory, 'keeper'),
    TMPDIR: bench.directory,
  });
  const jobs = Object.keys(JOBS).map((placeholder) => {
    const options = ['run', '--placeholder', placeholder, '--', 'sleep', '600'];
    return { placeholder, child: spawn(join(root, 'bin/gpu-owner.cjs'), options, { env, stdio: 'ignore' }) };
  });
  for (const { child } of jobs) await until(() => processes(child.pid).length === 5);
  await pause(SETTLING);
  return jobs.map((job) => ({
    ...job,
    age: ageOf(job.child.pid),
    parts: processes(job.child.pid).map(({ pid, name }) => ({ pid, name, before: usage(pid) })),
  }));
}

/** In seconds. */
function ageOf(pid) {
  const uptime = Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0]);
  return uptime - (statOf(pid).started * TICK_MS) / 1000;
}

async function until(condition) {
  for (const end = Date.now() + START_LIMIT; !condition(); await pause(20)) {
    if (Date.now() > end) throw new Error('the processes of a command under gpu-owner run did not start');
  }
}

/** The front, which the launcher has become, and everything that it started. */
function processes(front) {
  const all = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .flatMap((pid) => {
      try {
        return [{ pid, ...statOf(pid) }];
      } catch {
        return []; // the process has just ended
      }
    });
  const found = all.filter(({ pid }) => pid === front);
  for (let i = 0; i < found.length; i++) found.push(...all.filter(({ parent }) => parent === found[i].pid));
  return found;
}

function tables(jobs, seconds) {
  const measured = jobs.map(({ placeholder, parts }) => ({
    placeholder,
    label: `gpu-owner ${JOBS[placeholder]}`,
    parts: parts.filter(({ name }) => Object.hasOwn(PARTS, name)),
  }));
  const spent = (key) => (part) => part.after[key] - part.before[key];
  const now = (key) => (part) => part.after[key];
  const table = (name, title, unit, value) => ({
    name,
    title,
    unit,
    note: `${seconds.auto} and ${seconds.keep} s, simulated driver`,
    rows: measured.map(({ label, parts }) => ({
      label,
      series: Object.fromEntries([
        ...parts.map((part) => [PARTS[part.name], summarize([value(part)])]),
        ['all together', summarize([sum(parts.map(value))])],
      ]),
    })),
  });
  const most = Math.max(...measured.map(({ parts }) => sum(parts.map(now('proportional')))));
  const whole = measured.find(({ placeholder }) => placeholder === 'keep');
  const time = sum(whole.parts.map(spent('milliseconds')));
  return [
    {
      ...table('memory', 'Memory, shared pages in proportion', 'MB', now('proportional')),
      targets: [{ text: `at most ${LIMIT_MB} MB`, value: most, limit: LIMIT_MB, met: most <= LIMIT_MB }],
    },
    table('own-memory', 'Memory that nobody shares', 'MB', now('own')),
    {
      ...table('processor', 'Processor time in that time', 'ms', spent('milliseconds')),
      targets: [
        {
          text: 'at most 1 ms in a minute, once the GPU is kept',
          value: time,
          limit: 1,
          met: time <= 1,
        },
      ],
    },
    table('wake-ups', 'Wake-ups in that time', 'times', spent('wakeups')),
  ];
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function end(pid) {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {} // the process has ended with the others
}
