// The cost of submitting and listing background jobs, over starting Node.js at all.
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { makeEndedJobs } from './ended-jobs.js';
import { environment, NODE_ALONE, overNode, summarize, timeInTurn } from './measure.js';

const root = dirname(import.meta.dirname);
const TARGET = 100; // ms

export const jobs = {
  title: 'Jobs in the background',
  question: 'How much longer do `submit` and `jobs` take than an empty Node.js program?',
  async run(bench) {
    const { ended, rounds } = bench.quick ? { ended: 20, rounds: 3 } : { ended: 1_000, rounds: 60 };
    const env = environment({
      GPU_OWNER_SIMULATE: '8',
      GPU_OWNER_SIMULATE_DIR: join(bench.directory, 'machines'),
      XDG_STATE_HOME: join(bench.directory, 'state'),
      XDG_CONFIG_HOME: join(bench.directory, 'no-configuration'),
    });
    const launcher = join(root, 'bin/gpu-owner.cjs');
    const run = (...args) => {
      const { status, stderr } = spawnSync(launcher, args, { env, encoding: 'utf8' });
      if (status !== 0) throw new Error(`gpu-owner ${args[0]} exited with ${status}: ${stderr}`);
    };
    const submit = ['submit', '--name', 'job', '--', 'true'];
    run(...submit);
    run('wait', 'job');
    makeEndedJobs(join(bench.directory, 'state'), ended);
    bench.log(`beside ${ended} jobs that have ended`);
    const programs = {
      [NODE_ALONE]: [process.execPath, '-e', '0'],
      submit: [launcher, ...submit],
      jobs: [launcher, 'jobs'],
    };
    // The next measurement must not run beside the job.
    const times = timeInTurn(programs, rounds, env, (name) => name === 'submit' && run('wait', 'job'));
    const note = `in turn; ${ended.toLocaleString('en-US')} jobs that have ended; simulated driver without latency`;
    const targets = (list) =>
      ['submit', 'jobs'].map((name) => {
        const value = summarize(list[name]).median;
        return {
          text: `at most ${TARGET} ms over Node.js alone for gpu-owner ${name}, beside ${ended} ended jobs`,
          value,
          limit: TARGET,
          met: value <= TARGET,
        };
      });
    return overNode(times, note, targets);
  },
};
