import { discover } from '../claims/discovery.ts';
import { runAsync } from '../claims/effects.ts';
import { checkOptions } from '../claims/options.ts';
import { listed, notEnough, refuseImpossible } from '../claims/refusals.ts';
import { GPUOwnerError } from '../errors.ts';
import { select } from '../gpus/selection.ts';
import { formatVisibleDevices } from '../gpus/visible-devices.ts';
import { CRITERIA, claimOptions, NAMES, parse, refuseWords } from './arguments.ts';
import type { Command } from './command.ts';
import { COMMON_HELP, CRITERIA_HELP } from './help.ts';
import { print } from './output.ts';
import { gpuJSON } from './status-json.ts';

const HELP = `Usage: gpu-owner find [OPTIONS]

Prints what CUDA_VISIBLE_DEVICES would be if GPUs were claimed now. It claims
nothing: somebody else may be quicker, so prefer \`run\`. Exits with 75 if not
enough GPUs are free.

  -n, --gpus N              how many GPUs (default 1)
  --visible-devices FORM    uuid (default), or index for old software
  --json                    an array of the GPUs instead, as in \`status --json\`
${COMMON_HELP}

${CRITERIA_HELP}`;

const OPTIONS = {
  ...CRITERIA,
  gpus: { type: 'string', short: 'n' },
  'visible-devices': { type: 'string' },
  json: { type: 'boolean' },
} as const;

async function find(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  const { request, configuration, visibleDevices } = checkOptions(claimOptions(values), [], NAMES);
  const gpus = await runAsync(discover(request, configuration.lockDirectory, 'claimant'));
  const free = gpus.filter(({ state }) => state === 'free');
  const chosen = select(free, request.count);
  if (chosen === null) {
    const reasons = gpus.map(({ index, instance, uuid, reason }) => ({
      index,
      instance,
      uuid,
      reason: reason ?? 'free',
    }));
    refuseImpossible(request.count, gpus, () => reasons);
    throw new GPUOwnerError('ERR_GPU_UNAVAILABLE', notEnough(request.count, gpus) + listed(reasons), {
      gpus: reasons,
    });
  }
  if (values.json) {
    const uuids = new Set(chosen.map(({ uuid }) => uuid));
    print(JSON.stringify(gpus.filter(({ uuid }) => uuids.has(uuid)).map(gpuJSON), null, 2));
  } else {
    print(formatVisibleDevices(chosen, visibleDevices, gpus).CUDA_VISIBLE_DEVICES);
  }
}

export const COMMAND: Command = { run: find, help: HELP, options: OPTIONS };
