// The options of `run` and `submit`.
import {
  CRITERIA_GROUP,
  countOption,
  MEMORY,
  placeholderOption,
  TOGETHER,
  URGENT,
  VISIBLE_DEVICES,
  WAIT_BY_DEFAULT,
} from './claim-options.ts';
import type { OptionGroup, OptionTable } from './command-line.ts';
import { ABOUT, JOB, MOVE } from './job-options.ts';

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
