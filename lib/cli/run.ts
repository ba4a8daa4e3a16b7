import { becomeKeeper, claimForJob, commandProblem, hangUpWithSSHD, readStart } from '../jobs/index.ts';
import { usageError } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, SIMULATE } from './command-line.ts';
import { refuseThrowAway } from './installation.ts';
import { say } from './output.ts';
import { RUN_GROUPS } from './run-options.ts';
import { checkRun } from './run-request.ts';
import { waitLimits } from './wait-progress.ts';

const [options, ...criteria] = RUN_GROUPS;
const GROUPS = [
  {
    options: {
      ...options.options,
      requeue: {
        help: 'with --preemptible: wait for GPUs again afterwards, and restart the command',
        isAdvanced: true,
      },
      ...SIMULATE,
    },
  },
  ...criteria,
] as const satisfies readonly OptionGroup[];

async function run(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values, command } = parsed;
  if (values.requeue && !values.preemptible) throw usageError('--requeue needs --preemptible');
  if (values.on !== undefined) {
    checkRun(parsed, 'run');
    return (await import('./remote.ts')).runOn(values.on, parsed);
  }
  const start = readStart();
  const request = checkRun(parsed, 'run');
  const isRestarted = start.preemptions > 0;
  hangUpWithSSHD();
  refuseThrowAway();
  const problem = commandProblem(command);
  if (problem !== null) {
    say(problem.message);
    process.exit(problem.exitCode);
  }
  const wait = waitLimits(isRestarted ? {} : values, true);
  const claim = await claimForJob(request.settings, wait, start).finally(() => wait?.end());
  const isRequeued = values.requeue === true;
  becomeKeeper(claim, { ...request, words: command.length, start, isRequeued, job: null });
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [--] COMMAND [ARGUMENTS]',
  about: `Waits until enough GPUs are free, claims them, sets CUDA_VISIBLE_DEVICES, and runs the command. The GPUs stay claimed until the command and all its descendants have ended. They are released however these end.`,
  groups: GROUPS,
  notes: `Exit code: the command's own; 128 + N if signal N ended it; 64 bad usage, 69 no driver, 75 not available, 124 time limit, 143 preempted, 126 the command can't be run, 127 it isn't found.`,
  operands: 'command-line',
  run,
};
