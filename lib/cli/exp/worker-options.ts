import { resolve } from 'node:path';
import { checkOptions, type Settings } from '../../claims/index.ts';
import { parsePreemption } from '../../jobs/index.ts';
import { parseDuration, sanitize, shellWords } from '../../platform/index.ts';
import {
  type ExperimentLocation,
  type Needs,
  QUEUE_URLS,
  type WorkerRequest,
  withoutPassword,
} from '../../sweeps/index.ts';
import {
  COUNTS,
  claimOptions,
  DURATIONS,
  MEMORY,
  NAMES,
  placeholderOption,
  refusePreemptibleShare,
  SIZES,
  TOGETHER,
} from '../claim-options.ts';
import { type InferValues, type Option, type OptionTable, usage } from '../command-line.ts';
import { isTerminal } from '../output.ts';

/** Options of commands that use a queue. */
export const QUEUE = {
  project: {
    value: 'DIR',
    help: 'work in this project (default: the current directory)',
    candidates: 'directory',
  },
  queue: {
    value: 'URL',
    help: `use this task list: ${QUEUE_URLS.join(', ')} (default: GPU_OWNER_QUEUE, or in .gpu-owner/)`,
    isAdvanced: true,
  },
} satisfies OptionTable;

/** Absolute. @throws ERR_INVALID_ARGUMENT if it is empty, as it is by `--project "$UNSET"` */
function projectOf({ project }: InferValues<typeof QUEUE>): string {
  if (project === '') {
    throw usage('--project is empty; the current directory is .');
  }
  return resolve(project ?? '.');
}

function urlOf({ queue }: InferValues<typeof QUEUE>): string | null {
  return (queue ?? process.env.GPU_OWNER_QUEUE) || null;
}

/** Reads where the experiment is. @throws ERR_INVALID_ARGUMENT */
export function locationOf(values: InferValues<typeof QUEUE>): ExperimentLocation {
  return { directory: projectOf(values), url: urlOf(values) };
}

/** The options that lead a command of the user to the same queue. */
export function sameQueue({ project, queue }: InferValues<typeof QUEUE>): string[] {
  return [
    ...(project === undefined ? [] : ['--project', project]),
    ...(queue === undefined ? [] : ['--queue', withoutPassword(queue)]),
  ];
}

const MAX_NAMED = 5;

/** "3 tasks (a, b and c)" */
export function tasksNamed(names: readonly string[]): string {
  const count = `${names.length} ${names.length === 1 ? 'task' : 'tasks'}`;
  if (names.length === 0) return 'no task';
  const more = names.length > MAX_NAMED ? ', …' : '';
  return `${count} (${names
    .slice(0, MAX_NAMED)
    .map((name) => sanitize(name, 100))
    .join(', ')}${more})`;
}

/** For commands that run one. */
export const REPLACE_COMMANDS = {
  help: 'replace the command of known tasks, unless they are completed',
} satisfies Option;

/** Options of commands that have workers. @param gpus help for how many they may take in all */
export function workerOptions(gpus: string) {
  return {
    gpus: { short: 'n', value: 'N|all', help: gpus, candidates: COUNTS },
    'gpus-per-task': {
      value: 'N',
      help: 'give each task N GPUs (default: as the task list says, or 1)',
      candidates: COUNTS,
    },
    ...TOGETHER,
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

/** Options that say what each task needs, for commands without workers. */
export const NEEDS = {
  'gpus-per-task': {
    value: 'N',
    help: 'leave the tasks to `exp worker` with N GPUs for each (default 1)',
    candidates: COUNTS,
  },
  'min-free-memory': {
    value: 'SIZE',
    help: 'leave the tasks to `exp worker` on GPUs with SIZE of free memory',
    candidates: SIZES,
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
    needs: needsOf(values, settings),
    gpus: values.gpus ?? null,
    byDefault,
    grace,
    watched: isTerminal(1),
  };
}

/** Reads what each task needs, as far as the user says it: with {@link workerOptions} or {@link NEEDS}. @throws ERR_INVALID_ARGUMENT */
export function taskNeeds(values: InferValues<typeof NEEDS>): Partial<Needs> {
  return needsOf(values, taskSettings(values));
}

function taskSettings(
  values: InferValues<typeof NEEDS> & {
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
    ...(values.preemptible
      ? { class: 'preemptible' as const, graceMs: parsePreemption(undefined, undefined).graceMs }
      : {}),
  });
}

/** Configuration files speak of this machine, not of tasks. */
function needsOf(values: InferValues<typeof NEEDS>, { request }: Settings): Partial<Needs> {
  return {
    ...(values['gpus-per-task'] === undefined ? {} : { gpus: request.count }),
    ...(values['min-free-memory'] === undefined ? {} : { memory: request.criteria.minFreeMemory ?? 0 }),
  };
}
