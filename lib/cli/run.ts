import { CommandEnd, EXIT_CODES, type ExitCodes, GPUOwnerError } from '../errors.ts';
import {
  becomeKeeper,
  claimForJob,
  claimUntilInputCloses,
  commandProblem,
  readStart,
  warnOfOwnDevices,
} from '../jobs/index.ts';
import { native } from '../native.ts';
import { showValue } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, SIMULATE, usage } from './command-line.ts';
import { refuseThrowAway } from './installation.ts';
import { print, say } from './output.ts';
import { checkRun, RUN_GROUPS } from './run-request.ts';
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
      'conflict-exit-code': {
        value: 'N',
        help: 'exit with N (0 to 255) instead of 75',
        candidates: ['0', '75'],
        isAdvanced: true,
      },
      ...SIMULATE,
      'over-ssh': {
        value: 'TEXT',
        isValueOptional: true,
        help: 'hang up with the parent, and print TEXT when there are GPUs; for --on',
        isHidden: true,
      },
      'until-input-closes': {
        help: 'stop waiting when standard input is closed; for the self-test',
        isHidden: true,
      },
    },
  },
  ...criteria,
] as const satisfies readonly OptionGroup[];

async function run(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values, command } = parsed;
  if (values.requeue && !values.preemptible) throw usage('--requeue needs --preemptible');
  const exitCodes = exitCodesFor(values['conflict-exit-code']);
  if (values.on !== undefined) {
    checkRun(parsed, 'run');
    return (await import('./remote.ts')).runOn(values.on, parsed, exitCodes);
  }
  const start = readStart();
  const request = checkRun(parsed, 'run');
  const isRestarted = start.preemptions > 0;
  const overSSH = values['over-ssh'];
  if (overSSH !== undefined) native().processHangUpWithParent();
  refuseThrowAway();
  const problem = commandProblem(command);
  if (problem !== null) {
    say(problem.message);
    process.exit(problem.exitCode);
  }
  warnOfOwnDevices(command);
  const wait = waitLimits(isRestarted ? {} : values, true);
  try {
    const claiming = values['until-input-closes']
      ? claimUntilInputCloses(request.settings, wait)
      : claimForJob(request.settings, wait, start);
    const claim = await claiming.finally(() => wait?.end());
    if (typeof overSSH === 'string' && !isRestarted) print(`\n${overSSH}`);
    const isRequeued = values.requeue === true;
    becomeKeeper(claim, { ...request, words: command.length, start, isRequeued, job: null });
  } catch (error) {
    throw error instanceof GPUOwnerError ? new CommandEnd(error, exitCodes[error.code]) : error;
  }
}

/** The exit codes, with the user's own one where no GPU can be had: some scripts rely on 0. @throws ERR_INVALID_ARGUMENT */
function exitCodesFor(conflict: string | undefined): ExitCodes {
  if (conflict === undefined) return EXIT_CODES;
  const code = Number(conflict);
  if (/^\d{1,3}$/.test(conflict) && code <= 255)
    return { ...EXIT_CODES, ERR_GPU_UNAVAILABLE: code, ERR_TIMEOUT: code };
  throw usage(`--conflict-exit-code: ${showValue(conflict)} is not an exit code; use 0 to 255`);
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [--] COMMAND [ARGUMENTS]',
  about: `Waits until enough GPUs are free, claims them, sets CUDA_VISIBLE_DEVICES, and runs the command. The GPUs stay claimed until the command and all its descendants have ended. They are released however these end.`,
  groups: GROUPS,
  notes: `Exit code: the command's own; 128 + N if signal N ended it; 64 bad usage, 69 no driver, 75 not available, 124 time limit, 143 preempted, 126 the command can't be run, 127 it isn't found.`,
  operands: 'command-line',
  run,
};
