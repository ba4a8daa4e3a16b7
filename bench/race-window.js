// The race window: how long it takes from looking which GPUs are free until others can see that one of them is taken. And what comes of
// it: how often two programs that start about the same time end up on the same GPU.
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import { built, compiled, environment, Partner, pause, summarize } from './measure.js';
import { pythonWith } from './real.js';
import { smiPoll } from './smi.js';

/**
 * How long CUDA may take to start, as published; in ms. Both are of other machines than this one.
 * init: 80 ms with one GPU visible (394 ms with eight), of a DGX, https://github.com/NVIDIA/cudf/issues/627
 * context: 325 ms for cuDevicePrimaryCtxRetain, https://github.com/rapidsai/ucx-py/issues/402
 */
const PUBLISHED = { init: 80, context: 325 };
const SOURCES = 'cuInit 80 ms: NVIDIA/cudf#627; cuDevicePrimaryCtxRetain 325 ms: rapidsai/ucx-py#402';
const STARTS = { 'CUDA starts at once': null, 'CUDA starts as published': PUBLISHED };

const LEASE = 'gpu-owner: for others who use gpu-owner';
const DRIVER = 'gpu-owner: in the list of the driver';
const POLL = 'poll, then CUDA: in the list of the driver';
const OWNERS = 'gpu-owner';
const POLLERS = 'poll, then CUDA';

const GPUS = 8;
const ROUNDS = 12;
/** Between the starts of a pair, in ms. */
const APART = [0, 100, 200, 300, 400, 500, 600];
const PAIRS = 8;
/** At the same time, each on a machine of its own: they mostly wait. */
const SIDE_BY_SIDE = 4;

export const window = {
  title: 'The race window',
  question:
    'How long after a program has found a free GPU do others see that it is taken, and how often do two take the same?',
  async run(bench) {
    const { available, why } = pythonWith('torch');
    if (!available) bench.leaveOut('the import of PyTorch between poll and CUDA', why);
    return [await delays(bench), await collisions(bench)];
  },
};

async function delays(bench) {
  const rows = [];
  for (const [label, start] of Object.entries(STARTS)) {
    const machine = new SimulatedMachine(bench, GPUS, start);
    const series = { [LEASE]: [], [DRIVER]: [], [POLL]: [] };
    for (let i = 0; i < (bench.quick ? 2 : ROUNDS); i++) {
      const owner = await machine.start(OWNERS).over();
      series[LEASE].push(owner.leased - owner.looked);
      series[DRIVER].push(owner.visible - owner.looked);
      const poller = await machine.start(POLLERS).over();
      series[POLL].push(poller.visible - poller.looked);
    }
    rows.push({ label, series: summaries(series) });
  }
  const worst = Math.max(...rows.map(({ series }) => series[LEASE].high));
  return {
    name: 'delays',
    title: 'From the snapshot to being visible, per claim by a new process',
    unit: 'ms',
    note:
      `${GPUS} simulated GPUs; from the end of the snapshot that decides. Two claims with gpu-owner can't meet in this time: they decide ` +
      "one after the other, and each has its lease before the next one decides. The poll is safe-gpu's, without its lock, by " +
      `${machineLabel(bench)}. ${SOURCES}`,
    rows,
    targets: [
      {
        text: 'visible to others who use gpu-owner within 10 ms, however long CUDA takes',
        value: worst,
        limit: 10,
        met: worst <= 10,
      },
    ],
    chart: 'bars',
    scale: 'log',
  };
}

const machineLabel = (bench) => smiPoll(bench).label;

async function collisions(bench) {
  const count = bench.quick ? SIDE_BY_SIDE : PAIRS;
  const rows = [];
  for (const apart of bench.quick ? [0, 600] : APART) {
    const series = { [POLLERS]: [], [OWNERS]: [] };
    for (let done = 0; done < count; done += SIDE_BY_SIDE) {
      for (const kind of Object.keys(series)) {
        const pairs = Array.from({ length: SIDE_BY_SIDE }, () => pair(bench, kind, apart));
        series[kind].push(...(await Promise.all(pairs)));
      }
    }
    rows.push({
      label: apart === 0 ? 'at the same moment' : `${apart} ms apart`,
      x: apart,
      series: Object.fromEntries(Object.entries(series).map(([kind, met]) => [kind, share(met)])),
    });
  }
  const worst = Math.max(...rows.map(({ series }) => series[OWNERS].median));
  return {
    name: 'collisions',
    title: 'Pairs that end up on the same GPU, of two free ones',
    unit: '%',
    note:
      `${count} pairs per row and kind, each of two new processes on a simulated machine of its own; told by the process list of the ` +
      `driver. Each poller takes the first GPU that no process is on. CUDA starts as published (${SOURCES})`,
    rows,
    targets: [{ text: 'no pair with gpu-owner on the same GPU', value: worst, limit: 0, met: worst === 0 }],
    chart: 'lines',
    scale: 'linear',
  };
}

/** Whether two processes met on a GPU. */
async function pair(bench, kind, apart) {
  const machine = new SimulatedMachine(bench, 2, PUBLISHED);
  const first = machine.start(kind);
  if (apart > 0) await pause(apart);
  const second = machine.start(kind);
  await Promise.all([first.had(), second.had()]);
  const there = machine.processes();
  const pids = [first.process.pid, second.process.pid];
  if (pids.some((pid) => !there.flat().includes(pid)))
    throw new Error('a process that said it had a GPU is on none');
  await Promise.all([first.over(), second.over()]);
  return there.some((processes) => pids.every((pid) => processes.includes(pid)));
}

function share(met) {
  return { ...summarize([(100 * met.filter(Boolean).length) / met.length]), n: met.length };
}

function summaries(series) {
  return Object.fromEntries(Object.entries(series).map(([name, values]) => [name, summarize(values)]));
}

class SimulatedMachine {
  constructor(bench, gpus, start) {
    const directory = mkdtempSync(join(bench.directory, 'window-'));
    mkdirSync(directory, { recursive: true });
    this.env = environment({ GPU_OWNER_SIMULATE: String(gpus), GPU_OWNER_SIMULATE_DIR: directory });
    const poll = smiPoll(bench, { env: this.env });
    this.commands = {
      [OWNERS]: [process.execPath, join(import.meta.dirname, 'race-window-claimant.js')],
      [POLLERS]: [
        compiled(bench.directory, 'race-window.c'),
        join(built, 'simulator/libcuda.so.1'),
        ...poll.gpus,
        '--',
        ...poll.apps,
      ],
    };
    const { init, context } = start ?? { init: 0, context: 0 };
    this.simulator('set', `latency=cuda-init:${init * 1000},cuda-context:${context * 1000}`);
  }

  simulator(...args) {
    return execFileSync(join(built, 'gpu-owner-simulator'), args, { env: this.env, encoding: 'utf8' });
  }

  /** The simulated driver's own process table: PIDs by GPU. */
  processes() {
    return JSON.parse(this.simulator('show', '--json')).gpus.map(({ processes }) =>
      processes.map(({ pid }) => pid),
    );
  }

  start(kind) {
    return new Taker(this.commands[kind], this.env);
  }
}

/** A process that takes a GPU and keeps it until it is over. */
class Taker {
  constructor([program, ...args], env) {
    this.partner = new Partner(spawn(program, args, { env, stdio: ['pipe', 'pipe', 'inherit'] }));
    this.said = this.partner.heard();
    this.said.catch(() => {}); // the caller that asks learns of it
  }

  get process() {
    return this.partner.process;
  }

  /** In ms, on the monotonic clock. */
  async had() {
    const [, , looked, visible, leased] = (await this.said).split(' ').map((text) => Number(text) / 1e6);
    return { looked, visible, leased };
  }

  async over() {
    const times = await this.had();
    this.partner.end();
    await this.partner.ended;
    return times;
  }
}
