// How long a snapshot of all GPUs takes from JavaScript, beside a C program that makes the same driver calls, the same in Python, and a
// process that is started to ask.
import { execFileSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { built, compiled, environment, median, summarize } from './measure.js';
import { pythonWith, realDriver } from './real.js';
import { smiPoll } from './smi.js';

const root = dirname(import.meta.dirname);
const LIBRARY = join(built, 'simulator/libnvidia-ml.so.1');
const C = 'C';
const OURS = 'gpu-owner';
const PYTHON = 'Python (ctypes)';
const PYNVML = 'Python (nvidia-ml-py)';
const THREADS = 'C, a thread per GPU';
const ALONE = 'C, the slowest GPU alone';

/** The library in a program of its own, from its start: what a script costs that only asks. */
const COLD = `
const { getGPUsSync } = await import(${JSON.stringify(join(root, 'dist/index.js'))});
console.log(JSON.stringify(getGPUsSync()));`;

/** When its parts are reached, on the clock that all processes share. */
const SPLIT = `
const main = process.hrtime.bigint();
const { getGPUsSync } = await import(${JSON.stringify(join(root, 'dist/index.js'))});
const loaded = process.hrtime.bigint();
const text = JSON.stringify(getGPUsSync());
console.log([main, loaded, process.hrtime.bigint()].join(' '));`;

const PYNVML_LOOK = `
import sys, time
import pynvml as n
n.nvmlInit()
devices = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
calls = (n.nvmlDeviceGetMemoryInfo, n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetEnforcedPowerLimit, n.nvmlDeviceGetUtilizationRates,
  lambda d: n.nvmlDeviceGetTemperature(d, 0), n.nvmlDeviceGetComputeMode, n.nvmlDeviceGetDisplayActive,
  n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetGraphicsRunningProcesses)
for _ in range(int(sys.argv[1])):
  start = time.perf_counter_ns()
  for device in devices:
    for call in calls:
      try: call(device)
      except n.NVMLError: pass
  print(time.perf_counter_ns() - start)`;

export const snapshot = {
  title: 'A snapshot of all GPUs',
  question: 'How long does it take to ask the driver about every GPU, compared with C?',
  async run(bench) {
    const programs = programsOf(bench);
    return [
      ...warm(bench, programs),
      latencies(bench, programs),
      sideBySide(bench, programs),
      ...cold(bench, programs),
      ...real(bench, programs),
    ];
  },
};

/** Each returns nanoseconds. */
function programsOf(bench) {
  const baseline = compiled(bench.directory, 'snapshot.c');
  const python = pythonWith('ctypes');
  if (!python.available) bench.leaveOut(PYTHON, python.why);
  return {
    baseline,
    python: python.available ? python.program : null,
    c: (env, rounds, library = LIBRARY) => numbers(env, baseline, [library, String(rounds)]),
    threads: (env, rounds, library = LIBRARY) => numbers(env, baseline, [library, String(rounds), 'threads']),
    ours: (env, rounds) =>
      numbers(env, process.execPath, [join(import.meta.dirname, 'look.js'), String(rounds)]),
    ctypes: (env, rounds, library = LIBRARY) =>
      numbers(env, python.program, [script('nvml.py'), 'look', library, String(rounds)]),
  };
}

function numbers(env, program, args) {
  const text = execFileSync(program, args, { env, encoding: 'utf8', maxBuffer: 2 ** 26 });
  return text.trim().split('\n').map(Number);
}

const script = (name) => join(import.meta.dirname, 'baselines', name);

/** A simulated machine. @param settings for `gpu-owner-simulator set`, a list of arguments each */
function machine(bench, name, gpus, ...settings) {
  const env = environment({
    GPU_OWNER_SIMULATE: String(gpus),
    GPU_OWNER_SIMULATE_DIR: join(bench.directory, name),
  });
  for (const setting of [['latency=off'], ...settings]) {
    execFileSync(join(built, 'gpu-owner-simulator'), ['set', ...setting], { env });
  }
  return env;
}

/** Runs them in turn. @param series by name: what returns nanoseconds. @returns by name: summaries and medians in that unit */
function inTurn(series, repetitions, unit) {
  const values = new Map(Object.keys(series).map((name) => [name, []]));
  const medians = new Map(Object.keys(series).map((name) => [name, []]));
  for (let i = 0; i < repetitions; i++) {
    for (const [name, run] of Object.entries(series)) {
      const times = run().map((nanoseconds) => nanoseconds / unit);
      values.get(name).push(...times);
      medians.get(name).push(median(times));
    }
  }
  return {
    summaries: Object.fromEntries([...values].map(([name, all]) => [name, summarize(all)])),
    medians: Object.fromEntries(medians),
  };
}

function atMost(text, value, limit) {
  return { text, value, limit, met: value <= limit };
}

function warm(bench, { c, ours, ctypes, python }) {
  const rounds = bench.quick ? 500 : 4_000;
  const counts = bench.quick ? [1, 8] : [1, 2, 4, 8, 16];
  const repetitions = bench.quick ? 1 : 2;
  const results = counts.map((gpus) => {
    const env = machine(bench, 'warm', gpus);
    const series = { [C]: () => c(env, rounds), [OURS]: () => ours(env, rounds) };
    if (python !== null) series[PYTHON] = () => ctypes(env, rounds / 10);
    return { gpus, ...inTurn(series, repetitions, 1_000) };
  });
  const eight = results.find(({ gpus }) => gpus === 8).summaries;
  const first = results[0];
  const last = results[results.length - 1];
  const slopes = (name) =>
    first.medians[name].map((few, i) => (last.medians[name][i] - few) / (last.gpus - first.gpus));
  return [
    {
      name: 'warm',
      title: 'In a running program',
      unit: 'us',
      note: 'simulated driver whose calls take no time: the rest is what each way of asking adds',
      base: C,
      rows: results.map(({ gpus, summaries }) => ({ label: label(gpus), series: summaries })),
      targets: [atMost('at most 10 us over C for 8 GPUs', eight[OURS].median - eight[C].median, 10)],
    },
    {
      name: 'per-gpu',
      title: 'The cost of each further GPU',
      unit: 'us',
      base: C,
      rows: [
        {
          label: `from ${first.gpus} to ${last.gpus}`,
          series: Object.fromEntries(
            Object.keys(first.medians).map((name) => [name, summarize(slopes(name))]),
          ),
        },
      ],
    },
  ];
}

const label = (gpus) => (gpus === 1 ? '1 GPU' : `${gpus} GPUs`);

function latencies(bench, { c, ours, ctypes, python }) {
  const rounds = bench.quick ? 20 : 100;
  const rows = (bench.quick ? [30] : [10, 30, 100]).map((microseconds) => {
    const env = machine(bench, 'latencies', 8, [`latency=all:${microseconds}`]);
    const series = { [C]: () => c(env, rounds), [OURS]: () => ours(env, rounds) };
    if (python !== null) series[PYTHON] = () => ctypes(env, rounds);
    return {
      label: `${microseconds} us per call`,
      series: inTurn(series, bench.quick ? 1 : 3, 1e6).summaries,
    };
  });
  const [{ label: fastest, series }] = rows;
  const over = 1000 * (series[OURS].median - series[C].median);
  return {
    name: 'latencies',
    title: '8 GPUs, with a latency for each driver call',
    unit: 'ms',
    note: 'simulated driver; published latencies: 10 us per call for a whole snapshot, 360 us for power alone',
    base: C,
    rows,
    targets: [atMost(`at most 100 us over C at ${fastest}, in us`, over, 100)],
  };
}

function sideBySide(bench, { c, threads, ours }) {
  const rounds = bench.quick ? 3 : 10;
  const env = machine(bench, 'slow', 16, ['latency=all:1000'], ['gpu=5', 'latency=all:3000']);
  const slowest = machine(bench, 'slowest', 1, ['latency=all:3000']);
  const { summaries } = inTurn(
    {
      [ALONE]: () => c(slowest, rounds),
      [OURS]: () => ours(env, rounds),
      [THREADS]: () => threads(env, rounds),
      [C]: () => c(env, 2),
    },
    bench.quick ? 1 : 2,
    1e6,
  );
  return {
    name: 'side-by-side',
    title: '16 GPUs whose driver calls take 1 ms, and 3 ms on one of them',
    unit: 'ms',
    note: 'simulated driver, which serves GPUs independently of each other',
    base: ALONE,
    rows: [{ label: '16 GPUs', series: summaries }],
    targets: [
      atMost(
        'at most 1.15 of what the slowest GPU takes alone',
        summaries[OURS].median / summaries[ALONE].median,
        1.15,
      ),
    ],
  };
}

function cold(bench, { baseline, python, ours }) {
  const env = machine(bench, 'cold', 8);
  const starts = bench.quick ? 2 : 6;
  const spawn = compiled(bench.directory, 'spawn.c');
  const start =
    (...command) =>
    () =>
      numbers(env, spawn, ['1', ...command]);
  const smi = smiPoll(bench, { env });
  const node = [process.execPath, '--input-type=module', '-e'];
  const series = {
    [C]: start(baseline, LIBRARY, '1'),
    [OURS]: start(...node, COLD),
    'Node.js, doing nothing': start(...node, '0'),
    [smi.label]: () => smi.times(1).map((milliseconds) => milliseconds * 1e6),
  };
  if (python !== null) series[PYTHON] = start(python, script('nvml.py'), 'look', LIBRARY, '1');
  const { summaries } = inTurn(series, starts, 1e6);
  const parts = { 'start of Node.js': [], 'loading gpu-owner': [], 'the driver, and the snapshot': [] };
  for (let i = 0; i < starts; i++) {
    const began = process.hrtime.bigint();
    const text = execFileSync(node[0], [...node.slice(1), SPLIT], { env, encoding: 'utf8' });
    const reached = [began, ...text.trim().split(' ').map(BigInt)];
    for (const [part, name] of Object.keys(parts).entries()) {
      parts[name].push(Number(reached[part + 1] - reached[part]) / 1e6);
    }
  }
  const looks = summarize(ours(env, 500).map((nanoseconds) => nanoseconds / 1e6));
  return [
    {
      name: 'cold',
      title: 'A program that prints a snapshot of 8 GPUs, from its start to its end',
      unit: 'ms',
      note: 'simulated driver whose calls take no time',
      base: C,
      rows: [{ label: 'from start to end', series: summaries }],
    },
    {
      name: 'cold-parts',
      title: 'The same with gpu-owner, in parts',
      unit: 'ms',
      rows: Object.entries(parts).map(([name, values]) => ({
        label: name,
        series: { [OURS]: summarize(values) },
      })),
    },
    {
      name: 'poll',
      title: 'A snapshot in a running program, and by starting a program',
      unit: 'ms',
      base: OURS,
      rows: [{ label: '8 GPUs', series: { [OURS]: looks, [smi.label]: summaries[smi.label] } }],
    },
  ];
}

/** On NVIDIA's own driver, where there is one: also whether it serves several GPUs at the same time. */
function real(bench, { c, threads, ours, ctypes, python }) {
  const driver = realDriver();
  if (!driver.available) {
    bench.leaveOut("NVIDIA's driver: its latencies, and whether it serves GPUs side by side", driver.why);
    bench.leaveOut('nvidia-smi', driver.why);
    bench.leaveOut(PYNVML, driver.why);
    return [];
  }
  const env = environment({});
  delete env.GPU_OWNER_SIMULATE;
  const rounds = bench.quick ? 10 : 200;
  const series = {
    [C]: () => c(env, rounds, driver.library),
    [OURS]: () => ours(env, rounds),
    [THREADS]: () => threads(env, rounds, driver.library),
  };
  if (python !== null) series[PYTHON] = () => ctypes(env, rounds, driver.library);
  const pynvml = pythonWith('pynvml');
  if (pynvml.available) {
    series[PYNVML] = () => numbers(env, pynvml.program, ['-c', PYNVML_LOOK, String(rounds)]);
  } else {
    bench.leaveOut(PYNVML, pynvml.why);
  }
  const smi = smiPoll(bench, { env, real: true });
  series[smi.label] = () => smi.times(3).map((milliseconds) => milliseconds * 1e6);
  const { summaries } = inTurn(series, 3, 1e6);
  const table = {
    name: 'real',
    title: `NVIDIA's driver ${driver.version}, ${driver.gpus.length} x ${driver.gpus[0]}`,
    unit: 'ms',
    base: C,
    rows: [{ label: label(driver.gpus.length), series: summaries }],
    targets: [
      atMost(
        'at most 2 % over C, in %',
        (100 * (summaries[OURS].median - summaries[C].median)) / summaries[C].median,
        2,
      ),
    ],
  };
  if (driver.gpus.length > 1) {
    const gain = summaries[C].median / summaries[THREADS].median;
    table.note = `asked by a thread per GPU, the driver answers ${gain.toFixed(1)} times as fast: it ${
      gain > driver.gpus.length / 2
        ? 'serves GPUs side by side'
        : gain > 1.3
          ? 'serialises a part of its calls'
          : 'serialises its calls'
    }`;
  }
  return [table];
}
