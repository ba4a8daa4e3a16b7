import { checkOptions } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { becomeKeeper, claimForJob } from '../jobs/index.ts';
import { shellWords, showValue } from '../platform/index.ts';
import { CLAIM, claimOptions, isLostDuration, NAMES, parse, WAITING } from './arguments.ts';
import type { Command } from './command.ts';
import { setConflictExitCode } from './exit-codes.ts';
import { COMMON_HELP, CRITERIA_HELP } from './help.ts';
import { print } from './output.ts';
import { waitLimits } from './waiting-line.ts';

const HELP = `Usage: gpu-owner run [OPTIONS] [--] COMMAND [ARGUMENTS]

Waits until enough GPUs are free, claims them, sets CUDA_VISIBLE_DEVICES and
runs the command. The GPUs stay claimed as long as the command or anything it
has started lives, and are given back however it ends.

  -n, --gpus N              how many GPUs (default 1)
  --wait[=DURATION]         wait, at most so long (30s 10m 2h); default: wait
  --no-wait                 don't wait: exit with 75 if not enough are free
  --conflict-exit-code N    exit with N, 0 to 255, where that would be 75
  --placeholder MODE        auto: keep the GPUs visibly taken until the command
                            has reached them (default); keep: till it ends; none
  --visible-devices FORM    uuid (default), or index for old software
  --lock-timeout DURATION   for another claimant's decision (default 2s)
${COMMON_HELP}

${CRITERIA_HELP}

Exit code: the command's own; 128 + N if signal N ended it; 64 bad usage, 69 no
driver, 75 not available, 126/127 command can't be run/not found.`;

const OPTIONS = { ...CLAIM, ...WAITING, 'conflict-exit-code': { type: 'string' } } as const;

async function run(args: readonly string[]): Promise<void> {
  const { values, command } = parse(args, OPTIONS, true);
  if (values.help) return print(HELP);
  if (command.length === 0) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      'what shall be run? gpu-owner run -n 2 -- python train.py',
    );
  }
  const [duration = ''] = command;
  if (isLostDuration(values, duration)) {
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `'${duration}' would be the command; write --wait=${duration}`,
    );
  }
  const settings = checkOptions(claimOptions(values), [], NAMES);
  settings.request.command = shellWords(command);
  settings.request.isJob = true;
  const conflict = values['conflict-exit-code'];
  if (conflict !== undefined) setConflictExitCode(exitCode(conflict));
  const wait = waitLimits(values, true);
  const claim = await claimForJob(settings, wait).finally(() => wait?.end());
  // Claims inside the job must find what it holds.
  if (settings.request.lockDirectory) process.env.GPU_OWNER_LOCK_DIR = settings.request.lockDirectory;
  becomeKeeper(claim, command.length);
}

function exitCode(value: unknown): number {
  const code = Number(value);
  if (/^\d{1,3}$/.test(String(value)) && code <= 255) return code;
  throw new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `--conflict-exit-code: ${showValue(value)} is not an exit code; right are 0 to 255`,
  );
}

export const COMMAND: Command = { run, help: HELP, options: OPTIONS, operands: 'command-line' };
