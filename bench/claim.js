// The cost of a claim: in a program that runs, and from the start of a program on, step by step, beside C with the same files,
// locks and driver calls, and beside Python; and what of it is Node.js's own way to load a module.
import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { built, compiled, environment, summarize } from './measure.js';
import { pythonWith } from './real.js';

const root = dirname(import.meta.dirname);
const NVML = join(built, 'simulator/libnvidia-ml.so.1');
const CUDA = join(built, 'simulator/libcuda.so.1');
const LIBRARY = join(root, 'dist/index.js');
const BY_HAND = join(import.meta.dirname, 'baselines/nvml.py');
const C = 'C';
const OURS = 'gpu-owner';
const PYTHON = 'Python (ctypes)';
const EMPTY = 'an empty ES module';
const WHOLE = 'all, without the start of Node.js or Python';

/** In this order a program reaches the steps; what is between two of them is told under the name of the second. */
const PARTS = {
  start: 'loading, options',
  driver: 'driver, lock directory, first snapshot',
  'acquisition-lock': "other tools' locks, decision lock",
  chosen: 'judging, choosing',
  leased: 'lease',
  'looked-again': 'second snapshot',
  environment: 'environment',
  placeholder: 'placeholder',
  claimed: 'last snapshot',
};

const WARM = `
const { GPUOwner } = await import(${JSON.stringify(LIBRARY)});
const rounds = Number(process.argv[1]);
const times = [];
// A program that runs has had its functions compiled.
const warm = performance.now() + 2 * rounds;
while (performance.now() < warm) new GPUOwner(1, { placeholder: 'none' }).release();
for (let i = 0; i < rounds; i++) {
  const start = process.hrtime.bigint();
  new GPUOwner(1, { placeholder: 'none' }).release();
  times.push(process.hrtime.bigint() - start);
}
console.log(times.join('\\n'));`;

const STEPS = `
const reached = ['main ' + process.hrtime.bigint()];
process.getBuiltinModule('node:diagnostics_channel').subscribe('gpu-owner:step', ({ step, at }) => reached.push(step + ' ' + at));
const { GPUOwner } = await import(${JSON.stringify(LIBRARY)});
new GPUOwner(1);
console.log(reached.join('\\n'));`;

/** As the library is loaded above, and nothing else: how long each of the modules takes. */
const LOAD = `
for (const path of process.argv.slice(1)) {
  const start = process.hrtime.bigint();
  await import(path);
  console.log(String(process.hrtime.bigint() - start));
}`;

/** Simulated drivers. The second takes as long as a driver that is awake does, roughly: 10 us per call of NVML, and for CUDA with one GPU
 * visible 80 ms to start and 100 ms for a context. */
const DRIVERS = {
  'calls take no time': [],
  'calls take their time': ['latency=all:10,init:10000,cuda-init:80000,cuda-context:100000'],
};

export const claim = {
  title: 'A claim',
  question: 'How long does it take to claim a GPU, and how much of that is gpu-owner itself?',
  async run(bench) {
    const baseline = compiled(bench.directory, 'claim.c');
    const python = pythonWith('ctypes');
    if (!python.available) bench.leaveOut(PYTHON, python.why);
    const tables = [];
    for (const [index, [driver, settings]] of Object.entries(DRIVERS).entries()) {
      const env = machine(bench, `driver-${index}`, settings);
      const program = { baseline, python, env, directory: join(bench.directory, `locks-${index}`) };
      tables.push({
        ...warm(bench, program),
        name: `warm-${index}`,
        note: `simulated driver whose ${driver}`,
      });
      tables.push({
        ...cold(bench, program),
        name: `cold-${index}`,
        note: `simulated driver whose ${driver}`,
      });
    }
    tables.push(loading(bench));
    return tables;
  },
};

function machine(bench, name, settings) {
  const env = environment({
    GPU_OWNER_SIMULATE: '8',
    GPU_OWNER_SIMULATE_DIR: join(bench.directory, name),
  });
  for (const setting of ['latency=off', ...settings]) {
    execFileSync(join(built, 'gpu-owner-simulator'), ['set', setting], { env });
  }
  return env;
}

function run(env, program, ...args) {
  return execFileSync(program, args, { env, encoding: 'utf8', maxBuffer: 2 ** 26 })
    .trim()
    .split('\n');
}

const node = (script, ...args) => [process.execPath, '--input-type=module', '-e', script, ...args];

function warm(bench, { baseline, python, env, directory }) {
  const rounds = String(bench.quick ? 20 : 300);
  const series = {
    [C]: () => run(env, baseline, NVML, '-', directory, rounds),
    [OURS]: () => run(env, ...node(WARM, rounds)),
  };
  if (python.available)
    series[PYTHON] = () => run(env, python.program, BY_HAND, 'claim', NVML, directory, rounds);
  const values = Object.fromEntries(Object.keys(series).map((name) => [name, []]));
  for (let i = 0; i < (bench.quick ? 1 : 4); i++) {
    for (const [name, times] of Object.entries(series))
      values[name].push(...times().map((each) => Number(each) / 1_000));
  }
  const summaries = summarized(values);
  return {
    title: 'Claim and release in a running program, one of 8 GPUs, no placeholder',
    unit: 'us',
    base: C,
    rows: [{ label: 'claim and release', series: summaries }],
    targets: [times(summaries)],
  };
}

/** From the first line of the program on, whatever starts before that; both by the same clock. */
function cold(bench, { baseline, python, env, directory }) {
  const programs = {
    [C]: [baseline, NVML, CUDA, directory, '1', 'steps'],
    [OURS]: node(STEPS),
  };
  if (python.available) programs[PYTHON] = [python.program, BY_HAND, 'steps', NVML, directory, CUDA];
  const none = () => Object.fromEntries(Object.keys(programs).map((name) => [name, []]));
  const whole = none();
  const before = none();
  const fromStart = none();
  const parts = Object.fromEntries(Object.keys(PARTS).map((step) => [step, none()]));
  for (let i = 0; i < (bench.quick ? 2 : 10); i++) {
    for (const [name, command] of Object.entries(programs)) {
      const began = process.hrtime.bigint();
      const reached = new Map(
        run(env, ...command).map((line) => {
          const [step, at] = line.split(' ');
          return [step, BigInt(at)];
        }),
      );
      const main = reached.get('main');
      before[name].push(milliseconds(main - began));
      fromStart[name].push(milliseconds(reached.get('claimed') - began));
      whole[name].push(milliseconds(reached.get('claimed') - main));
      let last = main;
      for (const step of Object.keys(PARTS)) {
        parts[step][name].push(milliseconds(reached.get(step) - last));
        last = reached.get(step);
      }
    }
  }
  const summaries = summarized(whole);
  return {
    title: 'The first claim of a program, with placeholder, one of 8 GPUs',
    unit: 'ms',
    base: C,
    rows: [
      { label: 'start of the program (Node.js or Python itself)', series: summarized(before) },
      ...Object.entries(PARTS).map(([step, label]) => ({ label, series: summarized(parts[step]) })),
      { label: WHOLE, series: summaries },
      { label: 'all, from the start of the process on', series: summarized(fromStart) },
    ],
    targets: [times(summaries)],
  };
}

/** The part of "loading, options" that Node.js would take for any module. */
function loading(bench) {
  const [esModule, commonJS] = ['empty.mjs', 'empty.cjs'].map((name) => join(bench.directory, name));
  for (const path of [esModule, commonJS]) writeFileSync(path, '');
  const env = environment({});
  const modules = {
    [EMPTY]: [esModule],
    'an empty CommonJS module': [commonJS],
    [OURS]: [LIBRARY],
    'gpu-owner, after an empty ES module': [esModule, LIBRARY],
  };
  const values = Object.fromEntries(Object.keys(modules).map((name) => [name, []]));
  for (let i = 0; i < (bench.quick ? 2 : 12); i++) {
    for (const [name, paths] of Object.entries(modules)) {
      values[name].push(milliseconds(run(env, ...node(LOAD, ...paths)).at(-1)));
    }
  }
  return {
    name: 'loading',
    title: 'The first import of a program',
    unit: 'ms',
    note: '`import()` in Node.js, without a claim; a part of “loading, options” above',
    base: EMPTY,
    rows: [{ label: 'from `import()` to its end', series: summarized(values) }],
  };
}

const milliseconds = (nanoseconds) => Number(nanoseconds) / 1e6;

function summarized(values) {
  return Object.fromEntries(Object.entries(values).map(([name, all]) => [name, summarize(all)]));
}

function times(summaries) {
  const value = summaries[OURS].median / summaries[C].median;
  return { text: 'at most 1.15 times as long as in C', value, limit: 1.15, met: value <= 1.15 };
}
