// How many claims per second are made when many processes claim and release all the time, beside programs in C and in JavaScript that
// make the same system calls. An independent witness looks on, so that none is quick by being wrong.
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { compiled, environment, Partner, summarize } from './measure.js';
import { openWitness } from './witness.js';

const CROWDS = [1, 2, 4, 8, 16, 64];
const C = 'C, the same locks and records';
const NODE = 'Node.js, only the same calls';
const NOW = 'gpu-owner, without waiting';
const LINE = 'gpu-owner, in the wait queue';
/** The time of each crowd, in turn for all; in ms. */
const SLICE = 200;
const ROUNDS = 2;
/** Claims of each process before it is measured. More would take minutes, with 64 of them. */
const WARM_UP = 200;
/** Slices of a process that goes on, from its first claim. */
const GOING_ON = { 'the first 0.2 s': 0, 'after 0.4 s': 2, 'after 1 s': 5, 'after 3 s': 15 };

export const contention = {
  title: 'Claims under contention',
  question: 'How many claims per second are made when up to 64 processes claim and release without a pause?',
  async run(bench) {
    const crowds = bench.quick ? [1, 8] : CROWDS;
    const tables = [];
    for (const gpus of [8, 1]) {
      const { rows, holds } = await measure(bench, gpus, crowds);
      tables.push(throughput(gpus, rows, holds), fairness(gpus, rows));
    }
    tables.push(await goingOn(bench));
    return tables;
  },
};

/** Makes what contenders for some GPUs need. */
function place(bench, name, gpus) {
  const directory = join(bench.directory, name);
  const locks = join(directory, 'c-locks');
  mkdirSync(locks, { recursive: true });
  const witness = openWitness(directory);
  const env = environment({ GPU_OWNER_SIMULATE: String(gpus), GPU_OWNER_SIMULATE_DIR: directory });
  const begin = (warmUp) =>
    contender(env, [witness.path, join(directory, 'node-locks'), String(gpus), String(warmUp)]);
  return { locks, witness, env, begin };
}

/** The forms that V8 gives a program that goes on claiming: it is interpreted at first. */
async function goingOn(bench) {
  const { witness, begin } = place(bench, 'going-on', 8);
  const series = Object.values(GOING_ON).map(() => []);
  for (let round = 0; round < (bench.quick ? 1 : 3); round++) {
    const contender = begin(0);
    try {
      await contender.heard(); // ready
      for (let slice = 0; slice <= Math.max(...Object.values(GOING_ON)); slice++) {
        const [{ claims }] = await together([contender], 'now');
        const row = Object.values(GOING_ON).indexOf(slice);
        if (row >= 0) series[row].push((1000 * claims) / SLICE);
      }
    } finally {
      contender.end();
    }
  }
  witness.check();
  return {
    name: 'going-on',
    title: 'One process that keeps claiming, claims and releases per second',
    unit: '1/s',
    note: `8 GPUs, without placeholder, from the first claim of a program on; simulated driver, no latency; for ${SLICE} ms each`,
    rows: Object.keys(GOING_ON).map((label, row) => ({
      label,
      series: { 'gpu-owner, claim now': summarize(series[row]) },
    })),
  };
}

async function measure(bench, gpus, crowds) {
  const { locks, witness, env, begin } = place(bench, String(gpus), gpus);
  const program = compiled(bench.directory, 'contention.c');
  const baseline = (count) => {
    const words = [locks, witness.path, String(gpus), String(count), String(SLICE)];
    return execFileSync(program, words, { env, encoding: 'utf8' }).trim().split('\n').map(counts);
  };
  const contenders = Array.from({ length: crowds.at(-1) }, () => begin(WARM_UP));
  try {
    for (const each of contenders) await each.heard(); // ready
    const rows = [];
    for (const count of crowds) {
      const series = { [C]: [], [NODE]: [], [NOW]: [], [LINE]: [] };
      const some = contenders.slice(0, count);
      for (let round = 0; round < (bench.quick ? 1 : ROUNDS); round++) {
        series[C].push(baseline(count));
        series[NODE].push(await together(some, 'calls'));
        series[NOW].push(await together(some, 'now'));
        series[LINE].push(await together(some, 'line'));
      }
      rows.push({ count, series });
    }
    const { holds } = witness.check();
    return { rows, holds };
  } finally {
    for (const each of contenders) each.end();
  }
}

function contender(env, words) {
  const path = join(import.meta.dirname, 'contender.js');
  return new Partner(spawn(process.execPath, [path, ...words], { env, stdio: ['pipe', 'pipe', 'inherit'] }));
}

async function together(contenders, how) {
  const start = process.hrtime.bigint() + 5_000_000n + 500_000n * BigInt(contenders.length);
  const end = start + BigInt(SLICE) * 1_000_000n;
  for (const each of contenders) each.tell(`${how} ${start} ${end}`);
  return Promise.all(contenders.map(async (each) => counts(await each.heard())));
}

function counts(line) {
  const [claims, refusals] = line.split(' ').map(Number);
  return { claims, refusals };
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function claimsOf(processes) {
  return processes.map(({ claims }) => claims);
}

function throughput(gpus, rows, holds) {
  const perSecond = (slices) =>
    summarize(slices.map((processes) => (1000 * sum(claimsOf(processes))) / SLICE));
  const of = (count) => `${count} ${count === 1 ? 'process' : 'processes'}`;
  const table = {
    name: gpus === 1 ? 'one-gpu' : `${gpus}-gpus`,
    title: `Claims and releases per second, ${gpus === 1 ? '1 GPU' : `${gpus} GPUs`}`,
    unit: '1/s',
    note:
      `processes that have claimed ${WARM_UP} times before, without placeholder, ${ROUNDS} times ${SLICE} ms each, in turn; simulated driver, no latency; a refused process ` +
      `tries again after 1 ms; a witness saw all ${holds} claims, and never two holders of a GPU`,
    base: C,
    rows: rows.map(({ count, series }) => ({
      label: of(count),
      series: Object.fromEntries(Object.entries(series).map(([name, slices]) => [name, perSecond(slices)])),
    })),
  };
  const worst = Math.max(...table.rows.map(({ series }) => series[C].median / series[NOW].median));
  table.targets = [
    {
      text: 'at least half of the rate of C with the same locks and records, with any number of processes',
      value: worst,
      limit: 2,
      met: worst <= 2,
    },
  ];
  return table;
}

/** The shares that the least and the most served got of what would have been their share. */
function fairness(gpus, rows) {
  const shares = (slices, pick) =>
    summarize(
      slices.map((processes) => {
        const claims = claimsOf(processes);
        return (100 * pick(...claims) * claims.length) / Math.max(sum(claims), 1);
      }),
    );
  return {
    name: gpus === 1 ? 'one-gpu-shares' : `${gpus}-gpus-shares`,
    title: `Shares of the processes with the fewest and the most claims, ${gpus === 1 ? '1 GPU' : `${gpus} GPUs`}`,
    unit: '%',
    note: `in ${SLICE} ms; 100 is an equal share, 0 is no claim`,
    rows: rows
      .filter(({ count }) => count > 1)
      .map(({ count, series }) => ({
        label: `${count} processes`,
        series: Object.fromEntries(
          [C, NOW, LINE].flatMap((name) => [
            [`${name}: least`, shares(series[name], Math.min)],
            [`${name}: most`, shares(series[name], Math.max)],
          ]),
        ),
      })),
  };
}
