// How long a look at all GPUs takes from JavaScript, beside a C program that makes the same driver calls.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, environment, median } from './measure.js';

const root = dirname(import.meta.dirname);
const built = process.env.GPU_OWNER_BUILD ?? join(root, 'build/Release');
const ROUNDS = { 0: 20_000, 30: 200 };
const REPETITIONS = 5;

/** In a process of its own, as the library keeps its driver. */
const LOOK = `
import { getLook } from ${JSON.stringify(join(import.meta.dirname, 'look.js'))};
const look = await getLook();
const rounds = Number(process.argv[1]);
const times = new Float64Array(rounds);
for (let i = 0; i < 500 && i < rounds; i++) look();
for (let i = 0; i < rounds; i++) {
  const start = process.hrtime.bigint();
  look();
  times[i] = Number(process.hrtime.bigint() - start);
}
console.log(times.join('\\n'));`;

export function snapshot() {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
  const baseline = join(directory, 'snapshot');
  execFileSync('cc', ['-O2', '-o', baseline, join(import.meta.dirname, 'baselines/snapshot.c'), '-ldl']);
  const results = [];
  try {
    for (const latency of [0, 30]) {
      const env = environment({
        GPU_OWNER_SIMULATE: '8',
        GPU_OWNER_SIMULATE_DIR: join(directory, String(latency)),
      });
      const library = join(built, 'simulator/libnvidia-ml.so.1');
      spawnSync(baseline, [library, '1'], { env }); // makes the machine
      execFileSync(join(built, 'gpu-owner-simulator'), ['set', `latency=all:${latency}`], { env });
      const c = [];
      const js = [];
      const rounds = String(ROUNDS[latency]);
      for (let i = 0; i < REPETITIONS; i++) {
        c.push(...numbers(execFileSync(baseline, [library, rounds], { env, encoding: 'utf8' })));
        js.push(
          ...numbers(
            execFileSync(process.execPath, ['--input-type=module', '-e', LOOK, rounds], {
              env,
              encoding: 'utf8',
              maxBuffer: 2 ** 26,
            }),
          ),
        );
      }
      results.push({ latency, c, js });
    }
  } finally {
    rmSync(directory, { recursive: true });
  }
  console.log('Snapshot of 8 simulated GPUs, warm, per look:');
  for (const { latency, c, js } of results) {
    const more = median(js) - median(c);
    console.log(
      `  ${latency} us per driver call: C ${describe(c, 'us')}, gpu-owner ${describe(js, 'us')}: ` +
        `${more.toFixed(1)} us more, ${((100 * more) / median(c)).toFixed(1)} %`,
    );
  }
  return results.map(({ latency, c, js }) => ({ latency, c: median(c), gpuOwner: median(js) }));
}

function numbers(text) {
  return text
    .trim()
    .split('\n')
    .map((line) => Number(line) / 1000);
}
