import { checkOptions, type Settings } from '../claims/index.ts';
import {
  becomeKeeper,
  checkJobOptions,
  claimForJob,
  claimUntilInputCloses,
  commandProblem,
  continueWait,
  parseTimeLimit,
  type TimeLimit,
  warnOfOwnDevices,
} from '../jobs/index.ts';
import { native } from '../native.ts';
import { shellWords, showValue } from '../platform/index.ts';
import {
  CRITERIA_GROUP,
  claimingOptions,
  claimOptions,
  countOption,
  LOCKS,
  NAMES,
  waitOptions,
} from './claim-options.ts';
import type { Command, OptionGroup } from './command.ts';
import { setConflictExitCode } from './exit-codes.ts';
import { refuseThrowAway } from './installation.ts';
import { ABOUT } from './job-options.ts';
import { lostDuration, type OptionTable, type Parsed, usage } from './options.ts';
import { print, say } from './output.ts';
import { waitLimits } from './wait-progress.ts';

/** A request for `run` or `submit`, checked. */
export interface RunRequest {
  settings: Settings;
  limit: TimeLimit | null;
}

/** @param called the command's name @throws ERR_INVALID_ARGUMENT */
export function checkRun({ values, command }: Parsed, called: string): RunRequest {
  if (command.length === 0) {
    throw usage(`a command is missing; for example: gpu-owner ${called} -n 2 -- python train.py`);
  }
  const [duration = ''] = command;
  const option = lostDuration(values, duration);
  if (option !== null) throw usage(`'${duration}' would be the command; write ${option}`);
  const settings = checkOptions(claimOptions(values), [], NAMES);
  const { name, note } = values;
  const about = {
    ...(name === undefined ? {} : { name: String(name) }),
    ...(note === undefined ? {} : { note: String(note) }),
  };
  checkJobOptions(about);
  const limit = parseTimeLimit(values.for, values.signal);
  Object.assign(settings.request, { command: shellWords(command), isJob: true, about });
  if (limit !== null) settings.request.limitMs = limit.ms;
  const conflict = values['conflict-exit-code'];
  if (conflict !== undefined) setConflictExitCode(exitCode(conflict));
  return { settings, limit };
}

async function run(parsed: Parsed): Promise<void> {
  const { values, command } = parsed;
  const continued = continueWait();
  const { settings, limit } = checkRun(parsed, 'run');
  if (values.on !== undefined) return (await import('./on.ts')).runOn(parsed);
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

function exitCode(value: unknown): number {
  const code = Number(value);
  if (/^\d{1,3}$/.test(String(value)) && code <= 255) return code;
  throw usage(`--conflict-exit-code: ${showValue(value)} is not an exit code; use 0 to 255`);
}

const ON: OptionTable = {
  on: {
    value: 'HOST|any',
    help: 'run on another machine over ssh, in the same directory: HOST as in `ssh HOST`; any: the first configured host with enough free GPUs',
  },
};

/** Options of `run`, and of `submit` first. */
export const RUN_GROUPS: readonly OptionGroup[] = [
  {
    options: {
      ...countOption('claim'),
      ...waitOptions(true),
      for: {
        value: 'DURATION',
        help: 'end the command after DURATION (90s, 4h, 1d) with exit code 124; waiting does not count',
        candidates: ['30m', '4h', '1d'],
      },
      signal: {
        value: 'NAME@DURATION',
        help: 'send the command a signal so long before the limit of --for (USR1@5m)',
        candidates: ['USR1@5m', 'TERM@1m'],
      },
      ...ABOUT,
      'conflict-exit-code': {
        value: 'N',
        help: 'exit with N (0 to 255) instead of 75',
        candidates: ['0', '75'],
      },
      ...claimingOptions(
        'keep the GPUs visibly taken: auto (default), until the command uses them; keep, until it ends; none',
      ),
      ...LOCKS,
      ...ON,
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
  CRITERIA_GROUP,
];

export const COMMAND: Command = {
  usage: '[OPTIONS] [--] COMMAND [ARGUMENTS]',
  about: `Waits until enough GPUs are free, claims them, sets CUDA_VISIBLE_DEVICES, and runs the command. The GPUs stay claimed until the command and all its descendants have ended. They are released however these end.`,
  groups: RUN_GROUPS,
  notes: `Exit code: the command's own; 128 + N if signal N ended it; 64 bad usage, 69 no driver, 75 not available, 124 time limit, 126 the command can't be run, 127 it isn't found.`,
  operands: 'command-line',
  run,
};
