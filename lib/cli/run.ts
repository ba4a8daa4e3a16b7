import {
  becomeKeeper,
  type ContinuedWait,
  claimForJob,
  claimUntilInputCloses,
  commandProblem,
  continueWait,
  warnOfOwnDevices,
} from '../jobs/index.ts';
import { native } from '../native.ts';
import type { Command } from './command.ts';
import { withExitCode } from './exit-codes.ts';
import { refuseThrowAway } from './installation.ts';
import type { Parsed } from './options.ts';
import { print, say } from './output.ts';
import { checkRun, RUN_GROUPS, type RunRequest } from './run-request.ts';
import { waitLimits } from './wait-progress.ts';

async function run(parsed: Parsed<typeof RUN_GROUPS>): Promise<void> {
  const { values } = parsed;
  const continued = continueWait();
  const request = checkRun(parsed, 'run');
  if (values.on !== undefined) return (await import('./remote.ts')).runOn(values.on, parsed, request);
  await runHere(parsed, request, continued).catch((error: unknown) => {
    throw withExitCode(error, request.exitCodes);
  });
}

async function runHere(
  { values, command }: Parsed<typeof RUN_GROUPS>,
  { settings, limit }: RunRequest,
  continued: ContinuedWait,
): Promise<void> {
  const overSSH = values['over-ssh'];
  if (overSSH !== undefined) native().processHangUpWithParent();
  refuseThrowAway();
  const problem = commandProblem(command);
  if (problem !== null) {
    say(problem.message);
    process.exit(problem.exitCode);
  }
  warnOfOwnDevices(command);
  const wait = waitLimits(values, true);
  const claiming = values['until-input-closes']
    ? claimUntilInputCloses(settings, wait)
    : claimForJob(settings, wait, continued);
  const claim = await claiming.finally(() => wait?.end());
  if (typeof overSSH === 'string') print(`\n${overSSH}`);
  becomeKeeper(claim, command.length, limit);
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [--] COMMAND [ARGUMENTS]',
  about: `Waits until enough GPUs are free, claims them, sets CUDA_VISIBLE_DEVICES, and runs the command. The GPUs stay claimed until the command and all its descendants have ended. They are released however these end.`,
  groups: RUN_GROUPS,
  notes: `Exit code: the command's own; 128 + N if signal N ended it; 64 bad usage, 69 no driver, 75 not available, 124 time limit, 126 the command can't be run, 127 it isn't found.`,
  operands: 'command-line',
  run,
};
