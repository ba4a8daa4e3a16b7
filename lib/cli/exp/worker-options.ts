import { checkOptions, type Settings } from '../../claims/index.ts';
import { parseDuration, shellWords } from '../../platform/index.ts';
import type { WorkerRequest } from '../../sweeps/index.ts';
import {
  COUNTS,
  DURATIONS,
  MEMORY,
  placeholderOption,
  refusePreemptibleShare,
  TOGETHER,
} from '../claim-options.ts';
import { claimOptions, NAMES } from '../claim-values.ts';
import { advanced, type InferValues, type OptionTable } from '../command-line.ts';

/** Options of commands that have workers. @param gpus help for how many they may take in all */
export function workerOptions(gpus: string) {
  return {
    gpus: { short: 'n', value: 'N|all', help: gpus, candidates: COUNTS },
    'gpus-per-task': {
      value: 'N',
      help: 'give each task N GPUs (default: as the task list says, or 1)',
      candidates: COUNTS,
    },
    ...advanced(TOGETHER),
    ...MEMORY,
    grace: {
      value: 'DURATION',
      help: 'requeue tasks that still run DURATION after Ctrl-C (default: no limit)',
      candidates: DURATIONS,
      isAdvanced: true,
    },
    preemptible: {
      help: 'use GPUs that would be idle, and give tasks back when another request needs the GPUs',
    },
    ...placeholderOption(
      'keep the GPUs visibly taken: auto (default), also between tasks and until a command uses them; keep; none',
    ),
  } satisfies OptionTable;
}

/** For commands without workers. */
export const GPUS_PER_TASK = {
  'gpus-per-task': {
    value: 'N',
    help: 'leave the tasks to `exp worker` with N GPUs for each (default 1)',
    candidates: COUNTS,
  },
} satisfies OptionTable;

/** @param byDefault how many workers if nothing is said; null: it must be said @throws ERR_INVALID_ARGUMENT */
export function workerRequest(
  values: InferValues<ReturnType<typeof workerOptions>>,
  byDefault: number | null,
): WorkerRequest {
  const settings = taskSettings(values, shellWords(['gpu-owner', ...process.argv.slice(2)]));
  const grace = values.grace === undefined ? null : parseDuration(values.grace, '--grace');
  return {
    settings,
    gpusPerTask: values['gpus-per-task'] === undefined ? null : settings.request.count,
    gpus: values.gpus ?? null,
    byDefault,
    grace,
  };
}

/** How many GPUs each task gets, if the user says it. @throws ERR_INVALID_ARGUMENT */
export function gpusPerTask(values: InferValues<typeof GPUS_PER_TASK>): number | null {
  return values['gpus-per-task'] === undefined ? null : taskSettings(values).request.count;
}

function taskSettings(
  values: InferValues<typeof GPUS_PER_TASK> & {
    preemptible?: true | undefined;
    memory?: string | undefined;
    together?: true | undefined;
  },
  command?: string,
): Settings {
  refusePreemptibleShare(values);
  const names = { ...NAMES, count: '--gpus-per-task' };
  return checkOptions(claimOptions({ ...values, gpus: values['gpus-per-task'] }), [], names, {
    ...(command === undefined ? {} : { command }),
    ...(values.preemptible ? { class: 'preemptible' as const } : {}),
  });
}
