// What `gpu-owner run` costs over starting Node.js at all, from start to end of the process.
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { environment, summarize } from './measure.js';

const root = dirname(import.meta.dirname);
const BASE = 'node -e 0';
const TARGET = 20; // ms

export const start = {
  title: 'Starting a command',
  question: 'How much longer does a command take under `gpu-owner run` than an empty Node.js program?',
  async run(bench) {
    const env = environment({
      GPU_OWNER_SIMULATE: '8',
      GPU_OWNER_SIMULATE_DIR: join(bench.directory, 'start'),
    });
    const launcher = join(root, 'bin/gpu-owner.cjs');
    const commands = {
      [BASE]: [process.execPath, '-e', '0'],
      run: [launcher, 'run', '--', 'true'],
      'run --placeholder none': [launcher, 'run', '--placeholder', 'none', '--', 'true'],
      status: [launcher, 'status'],
    };
    const times = Object.fromEntries(Object.keys(commands).map((name) => [name, []]));
    const rounds = bench.quick ? 3 : 120;
    for (let i = -1; i < rounds; i++) {
      for (const [name, [program, ...args]] of Object.entries(commands)) {
        const begin = performance.now();
        const { status } = spawnSync(program, args, { env, stdio: 'ignore' });
        const time = performance.now() - begin;
        if (status !== 0) throw new Error(`${name} exited with ${status}`);
        if (i < 0) continue; // the first makes the simulated machine
        times[name].push(time);
      }
    }
    const { [BASE]: alone, ...ours } = times;
    const over = (list) => list.map((time, i) => time - alone[i]);
    const value = summarize(over(times.run)).median;
    return [
      {
        name: 'whole',
        title: 'From start to end',
        unit: 'ms',
        note: 'in turn; simulated driver without latency',
        base: BASE,
        rows: Object.entries(ours).map(([name, list]) => ({
          label: `gpu-owner ${name}`,
          series: { [BASE]: summarize(alone), 'gpu-owner': summarize(list) },
        })),
      },
      {
        name: 'over-node',
        title: 'Over Node.js alone',
        unit: 'ms',
        note: 'differences of neighbours in time',
        rows: Object.entries(ours).map(([name, list]) => ({
          label: `gpu-owner ${name}`,
          series: { 'gpu-owner': summarize(over(list)) },
        })),
        targets: [
          {
            text: `at most ${TARGET} ms over Node.js alone for gpu-owner run`,
            value,
            limit: TARGET,
            met: value <= TARGET,
          },
        ],
        chart: 'bars',
      },
    ];
  },
};
