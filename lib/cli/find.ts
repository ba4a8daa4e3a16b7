import { checkOptions, findForClaim, findWhenFree, runAsync } from '../claims/index.ts';
import { formatVisibleDevices } from '../gpus/index.ts';
import { CRITERIA, claimOptions, NAMES, parse, refuseWords, WAITING } from './arguments.ts';
import type { Command } from './command.ts';
import { COMMON_HELP, CRITERIA_HELP } from './help.ts';
import { print } from './output.ts';
import { gpuJSON } from './status-json.ts';
import { waitLimits } from './waiting-line.ts';

const HELP = `Usage: gpu-owner find [OPTIONS]

Prints what CUDA_VISIBLE_DEVICES would be if GPUs were claimed now. It claims
nothing: somebody else may be quicker, so prefer \`run\`. Exits with 75 if not
enough GPUs are free.

  -n, --gpus N              how many GPUs (default 1)
  --wait[=DURATION]         wait until so many are free, at most so long (30s
                            10m 2h); those who stand in line come first
  --no-wait                 don't wait (default): exit with 75
  --visible-devices FORM    uuid (default), or index for old software
  --json                    an array of the GPUs instead, as in \`status --json\`
${COMMON_HELP}

${CRITERIA_HELP}`;

const OPTIONS = {
  ...CRITERIA,
  ...WAITING,
  gpus: { type: 'string', short: 'n' },
  'visible-devices': { type: 'string' },
  json: { type: 'boolean' },
} as const;

async function find(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals, values);
  const { request, configuration, visibleDevices } = checkOptions(claimOptions(values), [], NAMES);
  const { lockDirectory } = configuration;
  const limits = waitLimits(values, false);
  const found =
    limits === null
      ? await runAsync(findForClaim(request, lockDirectory))
      : await findWhenFree(request, lockDirectory, limits).finally(limits.end);
  if (!found.granted) throw found.error;
  const { chosen, gpus } = found;
  if (values.json) {
    const uuids = new Set(chosen.map(({ uuid }) => uuid));
    print(JSON.stringify(gpus.filter(({ uuid }) => uuids.has(uuid)).map(gpuJSON), null, 2));
  } else {
    print(formatVisibleDevices(chosen, visibleDevices, gpus).CUDA_VISIBLE_DEVICES);
  }
}

export const COMMAND: Command = { run: find, help: HELP, options: OPTIONS };
