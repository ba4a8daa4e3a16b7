// npm run bench -- paired: two variants of this package, measured in turn, so that whatever else the machine does befalls both.
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, realpathSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { removeDirectory } from './leftovers.js';
import { environment, median } from './measure.js';

const HELP = `Usage: npm run bench -- paired --against DIR [OPTIONS] [-- ARGUMENTS]

Runs gpu-owner of this checkout and of another one in turn, and prints the
median of the differences with a 95 % confidence interval (bootstrap).
A negative difference means that this checkout is faster.

  --against DIR   the other checkout, built
  --rounds N      pairs of runs; default: 120
  --measure WHAT  run       start and end of the process (default)
                  snapshot  one snapshot of 8 GPUs in a running program
                  claim     one claim of one GPU in a running program, after rest
                  acquire   the same without blocking: GPUOwner.acquire()
  --latency TEXT  latencies of the simulated driver, as simulate set takes them;
                  default: realistic ones for claims, otherwise off
  --help          print this help

ARGUMENTS: what gpu-owner runs; default: run -- true`;

const root = dirname(import.meta.dirname);
const REALISTIC = 'all:30,init:10000,cuda-init:80000,cuda-context:100000';
const RESAMPLES = 4_000;

/** Each program measures itself and prints nanoseconds, a line per sample. "After rest": other work ran in between, caches are cold. */
const CLAIM = (directory, claim) => `
const { GPUOwner } = await import(${JSON.stringify(join(directory, 'dist/index.js'))});
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
for (let i = 0; i < 8; i++) {
  await pause(100);
  const start = process.hrtime.bigint();
  const owner = ${claim}GPUOwner${claim === 'await ' ? '.acquire' : ''}(1, { placeholder: 'none' });
  const took = process.hrtime.bigint() - start;
  owner.release();
  if (i > 1) console.log(String(took));
}`;

const MEASURES = {
  run: { unit: 'ms', perUnit: 1e6, latency: 'off', once: runOnce },
  snapshot: { unit: 'us', perUnit: 1e3, latency: 'off', once: snapshotOnce },
  claim: { unit: 'us', perUnit: 1e3, latency: REALISTIC, once: (variant) => claimOnce(variant, 'new ') },
  acquire: { unit: 'us', perUnit: 1e3, latency: REALISTIC, once: (variant) => claimOnce(variant, 'await ') },
};

function runOnce({ directory, env }, args) {
  const start = process.hrtime.bigint();
  const { status, error } = spawnSync(join(directory, 'bin/gpu-owner.cjs'), args, { env, stdio: 'ignore' });
  const took = Number(process.hrtime.bigint() - start);
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`gpu-owner ${args.join(' ')} of ${directory} exited with ${status}`);
  return took;
}

const medianOf = (text) => median(text.trim().split('\n').map(Number));

function snapshotOnce({ directory, env }) {
  return medianOf(
    execFileSync(process.execPath, [join(directory, 'bench/look.js'), '300'], { env, encoding: 'utf8' }),
  );
}

function claimOnce({ directory, env }, claim) {
  const args = ['--input-type=module', '-e', CLAIM(directory, claim)];
  return medianOf(execFileSync(process.execPath, args, { env, encoding: 'utf8' }));
}

/** The 2.5 % and 97.5 % quantiles of the median over resampled differences. */
function confidence(differences) {
  const medians = [];
  for (let i = 0; i < RESAMPLES; i++) {
    medians.push(median(differences.map(() => differences[Math.floor(Math.random() * differences.length)])));
  }
  medians.sort((a, b) => a - b);
  return [medians[Math.floor(RESAMPLES * 0.025)], medians[Math.floor(RESAMPLES * 0.975)]];
}

function options(words) {
  const { values, positionals } = parseArgs({
    args: words,
    options: {
      against: { type: 'string' },
      rounds: { type: 'string', default: '120' },
      measure: { type: 'string', default: 'run' },
      latency: { type: 'string' },
      help: { type: 'boolean', short: 'h' },
    },
    allowPositionals: true,
  });
  if (values.help) return { help: true };
  const rounds = Number(values.rounds);
  const measure = MEASURES[values.measure];
  if (values.against === undefined)
    throw new Error('--against is missing: the directory of the other checkout');
  if (!existsSync(join(values.against, 'bin/gpu-owner.cjs')))
    throw new Error(`${values.against} is no checkout`);
  if (!Number.isInteger(rounds) || rounds < 1) throw new Error('--rounds takes a whole number from 1');
  if (measure === undefined) throw new Error(`--measure takes ${Object.keys(MEASURES).join(', ')}`);
  return {
    ...measure,
    against: resolve(values.against),
    rounds,
    latency: values.latency ?? measure.latency,
    args: positionals.length > 0 ? positionals : ['run', '--', 'true'],
  };
}

/** A simulated machine of its own for each variant: their versions of the simulator may differ. */
function variant(directory, base, name, latency) {
  const env = environment({ GPU_OWNER_SIMULATE: '8', GPU_OWNER_SIMULATE_DIR: join(base, name) });
  delete env.GPU_OWNER_BUILD;
  const simulator = join(directory, 'build/Release/gpu-owner-simulator');
  execFileSync(simulator, ['set', 'latency=off'], { env });
  if (latency !== 'off') execFileSync(simulator, ['set', `latency=${latency}`], { env });
  return { directory, env };
}

function measurePairs(base, { against, rounds, once, latency, perUnit, args }) {
  const here = variant(root, base, 'here', latency);
  const there = variant(against, base, 'there', latency);
  const pairs = [];
  for (let i = -1; i < rounds; i++) {
    const order = i % 2 === 0 ? [here, there] : [there, here];
    const times = new Map(order.map((each) => [each, once(each, args) / perUnit]));
    if (i >= 0) pairs.push([times.get(here), times.get(there)]); // the first warms the caches of both
  }
  return pairs;
}

/** @returns the exit code */
export function main(words) {
  let chosen;
  try {
    chosen = options(words);
  } catch (error) {
    console.error(`bench: ${error.message}\nSee npm run bench -- paired --help`);
    return 64;
  }
  if (chosen.help) {
    console.log(HELP);
    return 0;
  }
  const base = mkdtempSync(join(realpathSync(tmpdir()), 'gpu-owner-bench-'));
  try {
    const pairs = measurePairs(base, chosen);
    const differences = pairs.map(([here, there]) => here - there);
    const [low, high] = confidence(differences);
    const text = (value) => value.toFixed(2);
    console.log(`this checkout: median ${text(median(pairs.map(([here]) => here)))} ${chosen.unit}`);
    console.log(`${chosen.against}: median ${text(median(pairs.map(([, there]) => there)))} ${chosen.unit}`);
    console.log(
      `difference: median ${text(median(differences))} ${chosen.unit}, 95 % [${text(low)}, ${text(high)}], ${pairs.length} pairs`,
    );
    return 0;
  } finally {
    removeDirectory(base);
  }
}
