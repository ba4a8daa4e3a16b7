// The cost of many waiting claimants.
import { spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import { environment, pause, summarize } from './measure.js';
import { beginProcessorTime, nameOf, usage } from './processes.js';

const root = dirname(import.meta.dirname);
/** While it waits, `gpu-owner run` is this program. */
const RESTING = 'gpu-owner-wait';
const LIMIT_MB = 2;
/** For what hangs; in ms. */
const REST_LIMIT = 10 * 60_000;

export const idle = {
  title: 'Waiting',
  question: 'How much processor time and memory do 500 waiting claimants use while nothing happens?',
  async run(bench) {
    const { waiters, minute } = bench.quick
      ? { waiters: 5, minute: 1_000 }
      : { waiters: 500, minute: 60_000 };
    const env = environment({
      GPU_OWNER_SIMULATE: '8',
      GPU_OWNER_SIMULATE_DIR: join(bench.directory, 'machines'),
    });
    const command = join(root, 'dist/gpu-owner.cjs');
    const start = (...args) =>
      spawn(process.execPath, [command, ...args], { env, stdio: ['pipe', 'pipe', 'ignore'] });
    const holder = start('hold', '-n', '8', '--placeholder', 'none');
    const line = [];
    try {
      await new Promise((resolve, reject) => {
        holder.stdout.once('data', resolve);
        holder.once('exit', (code) => reject(new Error(`gpu-owner hold exited with ${code}`)));
      });
      for (let i = 0; i < waiters; i++) {
        line.push(start('run', '-n', String(1 + (i % 8)), '--placeholder', 'none', '--', 'true'));
        await pause(30);
      }
      bench.log(`${waiters} claimants come to rest`);
      await allRest(line);
      const used = line.map(({ pid }) => usage(pid));
      bench.log(`${waiters} claimants wait for ${minute / 1000} s`);
      const times = beginProcessorTime(line.map(({ pid }) => pid));
      const began = performance.now();
      await pause(minute);
      const perMinute = (times().reduce((sum, time) => sum + time, 0) / (performance.now() - began)) * 60_000;
      const label = `${waiters} claimants`;
      const largest = Math.max(...used.map(({ own }) => own));
      const threads = Math.max(...used.map((each) => each.threads));
      return [
        {
          name: 'processor',
          title: 'Processor time of all claimants together, per minute of waiting',
          unit: 'ms',
          note: `${minute / 1000} s, as counted by the scheduler; simulated driver without latency`,
          rows: [{ label, series: { 'gpu-owner run': summarize([perMinute]) } }],
        },
        {
          name: 'memory',
          title: 'Memory of each claimant',
          unit: 'MB',
          rows: [
            {
              label,
              series: {
                'that nobody shares': summarize(used.map(({ own }) => own)),
                'with shared pages in proportion': summarize(used.map(({ proportional }) => proportional)),
              },
            },
          ],
          targets: [
            {
              text: `at most ${LIMIT_MB} MB that nobody shares, in each of ${waiters}`,
              value: largest,
              limit: LIMIT_MB,
              met: largest <= LIMIT_MB,
            },
            { text: 'one thread each', value: threads, limit: 1, met: threads === 1 },
          ],
        },
      ];
    } finally {
      for (const child of [...line, holder]) child.kill('SIGKILL');
    }
  },
};

/** Resolves as soon as all of them are small at the same time. */
async function allRest(line) {
  for (
    const end = Date.now() + REST_LIMIT;
    !line.every(({ pid }) => nameOf(pid) === RESTING);
    await pause(100)
  ) {
    const ended = line.find(({ exitCode, signalCode }) => exitCode !== null || signalCode !== null);
    if (ended !== undefined) throw new Error(`gpu-owner run ended: ${ended.exitCode ?? ended.signalCode}`);
    if (Date.now() > end) throw new Error('waiting claimants did not come to rest');
  }
}
