// A request for `run` or `submit`: the options that both have, and their check.
import { checkOptions, type Settings } from '../claims/index.ts';
import {
  checkJobOptions,
  commandProblem,
  type IdleLimit,
  type Preemption,
  parseIdle,
  parsePreemption,
  parseTimeLimit,
  type TimeLimit,
} from '../jobs/index.ts';
import { formatDuration, shellWords, showValue } from '../platform/index.ts';
import {
  CRITERIA_GROUP,
  claimOptions,
  countOption,
  MEMORY,
  NAMES,
  placeholderOption,
  refusePreemptibleShare,
  TOGETHER,
  URGENT,
  VISIBLE_DEVICES,
  WAIT_BY_DEFAULT,
} from './claim-options.ts';
import { type OptionGroup, type OptionTable, type Parsed, usage } from './command-line.ts';
import { ABOUT, JOB, MOVE } from './job-options.ts';
import { durationAfterWait, listWithSpaces } from './mistakes.ts';

const ON = {
  on: {
    value: 'HOST|any',
    help: 'run on another machine over ssh, in the same directory: HOST as in `ssh HOST`, or HOST:/DIR; any, a group, or a,b: the first with enough free GPUs, or the queue where it starts first',
  },
  env: {
    value: 'NAME[=VALUE]',
    isRepeatable: true,
    help: "with --on, carry an environment variable over; NAME can be a pattern ('WANDB_*')",
    isAdvanced: true,
  },
  chdir: { value: 'DIR', help: 'with --on, run in DIR there', candidates: 'directory', isAdvanced: true },
} satisfies OptionTable;

/** Options of `run` and of `submit`, each of which has more. */
export const RUN_GROUPS = [
  {
    options: {
      ...countOption('claim'),
      ...MEMORY,
      ...TOGETHER,
      ...WAIT_BY_DEFAULT,
      ...URGENT,
      for: {
        value: 'DURATION',
        help: 'end the command after DURATION (90s, 4h, 1d) with exit code 124; waiting does not count',
        candidates: ['30m', '4h', '1d'],
      },
      signal: {
        value: 'NAME[@DURATION]',
        help: 'send NAME this long before --for ends the command (USR1@5m); with --preemptible: when it must end (USR1)',
        candidates: ['USR1@5m', 'TERM@1m', 'USR1'],
        isAdvanced: true,
      },
      idle: {
        value: 'DURATION',
        help: 'end the command with exit code 124 if its GPUs did nothing for DURATION (30m, 1h); it is warned 5 minutes before',
        candidates: ['30m', '1h', '4h'],
      },
      preemptible: {
        help: 'use GPUs that would be idle, and give them back when another request needs them',
      },
      grace: {
        value: 'DURATION',
        help: 'with --preemptible: let the command end for DURATION (default 30s), then kill it',
        candidates: ['30s', '2m'],
        isAdvanced: true,
      },
      'cpu-bind': {
        help: 'bind the command to the processors of the NUMA nodes of its GPUs',
        isAdvanced: true,
      },
      ...ABOUT,
      ...placeholderOption(
        'keep the GPUs visibly taken: auto (default), until the command uses them; keep, until it ends; none',
      ),
      ...VISIBLE_DEVICES,
      ...ON,
    },
  },
  CRITERIA_GROUP,
] as const satisfies readonly OptionGroup[];

const [options, ...criteria] = RUN_GROUPS;
const RETRY = {
  retry: {
    value: 'N[:CODE]',
    help: 'restart the command, up to N times, if it fails (with exit code CODE); each time it waits for GPUs again',
    candidates: ['1', '3'],
  },
} satisfies OptionTable;
const ARRAY = {
  array: {
    value: 'IDS[%N]',
    help: 'submit parts with these numbers (0-99, 0-99:2, 1,3,7) as one job, at most N at a time; each has its own GPUs, and its number in GPU_OWNER_ARRAY_ID. Parts on any host are jobs of their own: %N and --like-slurm need one host',
  },
  'like-slurm': {
    help: 'with --array: set the variables of job arrays in Slurm, too (SLURM_ARRAY_TASK_ID, …)',
  },
} satisfies OptionTable;

/** Options of `submit`. */
export const SUBMIT_GROUPS = [
  { options: { ...options.options, ...JOB, ...MOVE, ...RETRY, ...ARRAY } },
  ...criteria,
] as const satisfies readonly OptionGroup[];

/** A request for `run` or `submit`, checked. */
export interface RunRequest {
  settings: Settings;
  limit: TimeLimit | null;
  /** null: its GPUs may do nothing for ever. */
  idle: IdleLimit | null;
  /** null: the command never gives way. */
  preemption: Preemption | null;
}

/** @param called the command's name @param laterMs the limit that it was given since; null: none @throws ERR_INVALID_ARGUMENT */
export function checkRun(
  { values, command, args }: Parsed<typeof RUN_GROUPS>,
  called: string,
  laterMs: number | null = null,
): RunRequest {
  if (command.length === 0) {
    throw usage(`a command is missing; for example: gpu-owner ${called} -n 2 -- python train.py`);
  }
  const [duration = ''] = command;
  const option = durationAfterWait(values, duration);
  if (option !== null) throw usage(`'${duration}' would be the command; write ${option}`);
  refuseStrayWords(command, args);
  const { name, note } = values;
  const asked = { ...(name === undefined ? {} : { name }), ...(note === undefined ? {} : { note }) };
  checkJobOptions(asked);
  const isPreemptible = values.preemptible === true;
  if (isPreemptible && values.urgent) throw usage('--urgent and --preemptible contradict each other');
  refusePreemptibleShare(values);
  if (!isPreemptible && values.grace !== undefined)
    throw usage('--grace needs --preemptible: it is the time that such a command has to end');
  const isForPreemption = isPreemptible && values.signal?.includes('@') === false;
  const preemption = isPreemptible
    ? parsePreemption(isForPreemption ? values.signal : undefined, values.grace)
    : null;
  for (const option of ['env', 'chdir'] as const)
    if (values.on === undefined && values[option] !== undefined)
      throw usage(`--${option} belongs to --on: here a command has your environment and directory`);
  // Another machine has its own configuration: it decides who may be urgent, and how long a command may run.
  const isHere = values.on === undefined;
  const given = parseTimeLimit(values.for, isForPreemption ? undefined : values.signal, isHere);
  const limit = laterMs === null ? given : given && { ...given, ms: laterMs, text: formatDuration(laterMs) };
  const options = claimOptions(isHere ? values : { ...values, urgent: undefined });
  const settings = checkOptions(options, [], NAMES, {
    command: shellWords(command),
    isJob: true,
    takesLimit: true,
    about: asked,
    ...(values['cpu-bind'] === true ? { bindsCPUs: true } : {}),
    ...(preemption === null ? {} : { class: 'preemptible' as const, graceMs: preemption.graceMs }),
    ...(limit === null ? {} : { limitMs: limit.ms }),
  });
  return {
    settings,
    limit,
    idle: parseIdle(values.idle, isHere),
    preemption,
  };
}

/** Refuses `--devices 0 1 -- COMMAND`, and other words before `--` that belong to no option. @throws ERR_INVALID_ARGUMENT */
function refuseStrayWords(command: readonly string[], args: readonly string[]): void {
  const at = args.length - command.length;
  const [word = ''] = command;
  if (args[at - 1] === '--' || !/^[\d,:-]+$|^(?:GPU|MIG)-/.test(word) || commandProblem([word]) === null)
    return;
  const list = listWithSpaces(args, at);
  if (list !== null) throw usage(`${showValue(word)} would be the command; write ${list}`);
  if (command.includes('--'))
    throw usage(`${showValue(word)} would be the command: it belongs to no option; see --help`);
}
