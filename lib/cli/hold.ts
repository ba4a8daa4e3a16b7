import { checkOptions } from '../claims/index.ts';
import { becomeHolder, claimForJob } from '../jobs/index.ts';
import { shellWords } from '../platform/index.ts';
import { CLAIM, claimOptions, NAMES, parse, refuseWords, WAITING } from './arguments.ts';
import { ClosedInput } from './closed-input.ts';
import type { Command } from './command.ts';
import { COMMON_HELP, CRITERIA_HELP } from './help.ts';
import { print } from './output.ts';
import { waitLimits } from './waiting-line.ts';

const HELP = `Usage: gpu-owner hold [OPTIONS]

Claims GPUs, prints one line of JSON,
{ "devices": [{ "index", "uuid", "name" }], "visibleDevices": "…" },
and holds them until its standard input is closed or a signal ends it. The way
in for any language: start it with a pipe as standard input, read the line, set
CUDA_VISIBLE_DEVICES, and keep the pipe open.

  -n, --gpus N              how many GPUs (default 1)
  --wait[=DURATION]         wait for GPUs, at most so long (30s 10m 2h)
  --no-wait                 don't wait (default): exit with 75
  --placeholder MODE        auto: keep the GPUs visibly taken until a process
                            shows on them, 60 s at most (default); keep; none
  --visible-devices FORM    uuid (default), or index for old software
  --lock-timeout DURATION   for another claimant's decision (default 2s)
  --as TEXT                 what \`status\` shows others as the holder's command
${COMMON_HELP}

${CRITERIA_HELP}`;

const OPTIONS = { ...CLAIM, ...WAITING, as: { type: 'string' } } as const;

async function hold(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals, values);
  const settings = checkOptions(claimOptions(values), [], NAMES);
  settings.request.command = values.as ? String(values.as) : shellWords(['gpu-owner', 'hold', ...args]);
  const limits = waitLimits(values, false);
  const claim = await new ClosedInput()
    .endsWaiting(limits, (wait) => claimForJob(settings, wait))
    .finally(() => limits?.end());
  const devices = claim.gpus.map(({ index, instance, uuid, name }) => ({
    index,
    ...(instance === null ? {} : { instance }),
    uuid,
    name,
  }));
  becomeHolder(claim, JSON.stringify({ devices, visibleDevices: claim.visibleDevices }));
}

export const COMMAND: Command = { run: hold, help: HELP, options: OPTIONS };
