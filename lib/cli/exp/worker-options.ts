import {
  checkOptions,
  discover,
  type GPUStatus,
  listed,
  refuseImpossible,
  runAsync,
  type Settings,
} from '../../claims/index.ts';
import { GPUOwnerError } from '../../errors.ts';
import { listWords, parseDuration, showValue } from '../../platform/index.ts';
import { CLAIM, claimOptions, NAMES, type OptionTable, type Values } from '../arguments.ts';

/** Options of commands that have workers. */
export const WORKERS = {
  ...CLAIM,
  'gpus-per-task': { type: 'string' },
  grace: { type: 'string' },
} as const satisfies OptionTable;

export const WORKERS_HELP = `  --gpus-per-task N         GPUs that each task gets (default 1)
  --grace DURATION          how long tasks that run may take to finish after
                            Ctrl-C; then they are given back (default: no limit)
  --placeholder MODE        auto: GPUs are visibly taken also between tasks and
                            until a command is there (default); keep; none
  --visible-devices FORM    uuid (default), or index for old software
  --lock-timeout DURATION   for another claimant's decision (default 2s)`;

export interface WorkerSettings {
  /** For the claim of each worker. */
  settings: Settings;
  /** How many workers. */
  workers: number;
  /** In ms; null: no limit. */
  grace: number | null;
}

/**
 * @param byDefault how many GPUs if nothing is said; null: it must be said
 * @throws ERR_INVALID_ARGUMENT; also where so many GPUs can never be had
 */
export async function workerSettings(values: Values, byDefault: number | null): Promise<WorkerSettings> {
  const names = { ...NAMES, count: '--gpus-per-task' };
  const settings = checkOptions(claimOptions({ ...values, gpus: values['gpus-per-task'] }), [], names);
  const perTask = settings.request.count;
  const grace = values.grace === undefined ? null : parseDuration(values.grace, '--grace');
  const { request, configuration } = settings;
  const gpus = await runAsync(discover(request, configuration.lockDirectory, 'claimant'));
  const wanted = wantedGPUs(values.gpus, byDefault === null ? null : byDefault * perTask, gpus);
  refuseImpossible(Math.max(wanted, perTask), gpus, () => reasons(gpus));
  if (wanted % perTask !== 0) {
    const fitting = [Math.floor(wanted / perTask), Math.ceil(wanted / perTask)].filter((each) => each > 0);
    if (values.gpus !== 'all' || wanted < perTask) {
      throw usage(
        `--gpus: ${wanted} can't be shared out to tasks with ${perTask} each; right are ${listWords(
          [...new Set(fitting)].map((each) => String(each * perTask)),
          'or',
        )}`,
      );
    }
  }
  return { settings, workers: Math.floor(wanted / perTask), grace };
}

function wantedGPUs(value: Values[string], byDefault: number | null, gpus: readonly GPUStatus[]): number {
  const claimable = gpus.filter(({ state }) => ['free', 'leased', 'busy'].includes(state)).length;
  if (value === 'all') {
    if (claimable > 0) return claimable;
    throw new GPUOwnerError(
      'ERR_GPU_UNAVAILABLE',
      `no GPU of this machine can be had${listed(reasons(gpus))}`,
      {
        gpus: reasons(gpus),
      },
    );
  }
  if (value === undefined && byDefault !== null) return byDefault;
  const free = gpus.filter(({ state }) => state === 'free').length;
  const there = `${free === 0 ? 'none' : free} of ${claimable} ${free === 1 ? 'is' : 'are'} free now`;
  if (value === undefined) {
    throw usage(`how many GPUs may it take? --gpus ${Math.max(1, free)}, or --gpus all (${there})`);
  }
  const number = /^\d{1,4}$/.test(String(value)) ? Number(value) : 0;
  if (number >= 1) return number;
  throw usage(`--gpus: ${showValue(value)} is not a number of GPUs; right are 1, 2, … or all (${there})`);
}

function reasons(gpus: readonly GPUStatus[]) {
  return gpus.map(({ index, instance, uuid, reason }) => ({
    index,
    instance,
    uuid,
    reason: reason ?? 'free',
  }));
}

function usage(message: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', message);
}
