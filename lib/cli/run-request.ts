// A request for `run` or `submit`, checked.
import type { Settings } from '../claims/index.ts';
import {
  checkJobOptions,
  type IdleLimit,
  type Preemption,
  parseIdle,
  parsePreemption,
  parseTimeLimit,
  type TimeLimit,
} from '../jobs/index.ts';
import { shellWords, usageError } from '../platform/index.ts';
import { refusePreemptibleShare } from './claim-options.ts';
import { checkClaim } from './claim-values.ts';
import type { Parsed } from './command-line.ts';
import { durationAfterWait } from './mistakes.ts';
import type { RUN_GROUPS } from './run-options.ts';

/** A request for `run` or `submit`, checked. */
export interface RunRequest {
  settings: Settings;
  limit: TimeLimit | null;
  /** null: its GPUs may do nothing for ever. */
  idle: IdleLimit | null;
  /** null: the command never gives way. */
  preemption: Preemption | null;
}

/** @param called the command's name @param laterMs the time limit that it was given since; null: none @throws ERR_INVALID_ARGUMENT */
export function checkRun(
  { values, command }: Parsed<typeof RUN_GROUPS>,
  called: string,
  laterMs: number | null = null,
): RunRequest {
  if (command.length === 0) {
    throw usageError(`a command is missing; for example: gpu-owner ${called} -n 2 -- python train.py`);
  }
  const [duration = ''] = command;
  const option = durationAfterWait(values, duration);
  if (option !== null) throw usageError(`'${duration}' would be the command; write ${option}`);
  const { name, note } = values;
  const asked = { ...(name === undefined ? {} : { name }), ...(note === undefined ? {} : { note }) };
  checkJobOptions(asked);
  const isPreemptible = values.preemptible === true;
  if (isPreemptible && values.urgent) throw usageError('--urgent and --preemptible contradict each other');
  refusePreemptibleShare(values);
  if (!isPreemptible && values.grace !== undefined)
    throw usageError('--grace needs --preemptible: it is the time that such a command has to end');
  const isForPreemption = isPreemptible && values.signal?.includes('@') === false;
  const preemption = isPreemptible
    ? parsePreemption(isForPreemption ? values.signal : undefined, values.grace)
    : null;
  for (const option of ['env', 'chdir'] as const)
    if (values.on === undefined && values[option] !== undefined)
      throw usageError(`--${option} belongs to --on: here a command has your environment and directory`);
  // Another machine has its own configuration: it decides who may be urgent, and how long a command may run.
  const isHere = values.on === undefined;
  const limit = parseTimeLimit(laterMs ?? values.for, isForPreemption ? undefined : values.signal, isHere);
  const settings = checkClaim(isHere ? values : { ...values, urgent: undefined }, {
    command: shellWords(command),
    isJob: true,
    about: asked,
    ...(values['cpu-bind'] === true ? { bindsCPUs: true } : {}),
    ...(preemption === null ? {} : { class: 'preemptible' as const }),
    ...(limit === null ? {} : { limitMs: limit.ms }),
  });
  return { settings, limit, idle: parseIdle(values.idle, isHere), preemption };
}
