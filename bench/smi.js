// A poll of the GPUs by a process that is started for it, as programs do that ask nvidia-smi; safe-gpu for one asks twice, which GPUs
// there are and which processes compute. Without nvidia-smi, or on a simulated machine, which it knows nothing of, the stand-in
// baselines/smi.c does what it must do at least.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { built, compiled } from './measure.js';
import { nvidiaSmi, realDriver } from './real.js';

const STAND_IN = 'a process that asks NVML (no less than nvidia-smi)';

const QUERIES = {
  gpus: ['--query-gpu=index,uuid,memory.used', '--format=csv,noheader'],
  apps: ['--query-compute-apps=gpu_uuid,pid,used_memory', '--format=csv,noheader'],
};

/**
 * @param env of the processes: which simulated machine is asked
 * @param real asks NVIDIA's driver instead: by nvidia-smi, or by the stand-in where that is missing (which is then left out by name)
 * @returns `label` for a series; `gpus`, `apps`: a command each, [program, ...arguments]; `poll()` runs both, and returns what they
 *   print; `times(rounds, what)` the milliseconds of each of so many polls (`what`: 'gpus', 'apps' or, the default, 'both'), timed in C
 */
export function smiPoll(bench, { env, real = false } = {}) {
  const commands = real ? ofRealDriver(bench) : standIn(bench, join(built, 'simulator/libnvidia-ml.so.1'));
  const words = {
    gpus: commands.gpus,
    apps: commands.apps,
    both: [...commands.gpus, '--', ...commands.apps],
  };
  const options = { env, encoding: 'utf8', maxBuffer: 2 ** 26 };
  const ask = ([program, ...args]) => execFileSync(program, args, options);
  const times = (rounds, what = 'both') =>
    execFileSync(compiled(bench.directory, 'spawn.c'), [String(rounds), ...words[what]], options)
      .trim()
      .split('\n')
      .map((nanoseconds) => Number(nanoseconds) / 1e6);
  return { ...commands, poll: () => ask(commands.gpus) + ask(commands.apps), times };
}

function standIn(bench, library) {
  const program = compiled(bench.directory, 'smi.c');
  return { label: STAND_IN, gpus: [program, library, 'gpus'], apps: [program, library, 'apps'] };
}

function ofRealDriver(bench) {
  const driver = realDriver();
  if (!driver.available) throw new Error(`there is no real driver: ${driver.why}`);
  const smi = nvidiaSmi();
  if (!smi.available) {
    bench.leaveOut('nvidia-smi', smi.why);
    return standIn(bench, driver.library);
  }
  const [gpus, apps] = [QUERIES.gpus, QUERIES.apps].map((query) => [smi.program, ...query]);
  return { label: 'nvidia-smi', gpus, apps };
}
