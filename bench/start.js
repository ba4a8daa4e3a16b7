// The cost of `gpu-owner run` over starting Node.js at all, from start to end of the process.
import { dirname, join } from 'node:path';
import { environment, NODE_ALONE, overNode, summarize, timeInTurn } from './measure.js';

const root = dirname(import.meta.dirname);
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
    const programs = {
      [NODE_ALONE]: [process.execPath, '-e', '0'],
      run: [launcher, 'run', '--', 'true'],
      'run --placeholder none': [launcher, 'run', '--placeholder', 'none', '--', 'true'],
      status: [launcher, 'status'],
    };
    const times = timeInTurn(programs, bench.quick ? 3 : 120, env);
    return overNode(times, 'in turn; simulated driver without latency', ({ run }) => {
      const value = summarize(run).median;
      const text = `at most ${TARGET} ms over Node.js alone for gpu-owner run`;
      return [{ text, value, limit: TARGET, met: value <= TARGET }];
    });
  },
};
