import { findGPUs } from '../claims/index.ts';
import { formatVisibleDevices } from '../gpus/index.ts';
import { usageError } from '../platform/index.ts';
import { gpuJSON } from '../status/index.ts';
import { CRITERIA_GROUP, countOption, MEMORY, TOGETHER, VISIBLE_DEVICES } from './claim-options.ts';
import { checkClaim } from './claim-values.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands, SIMULATE } from './command-line.ts';
import { askFleet, HOSTS_WITH_JSON, isForHosts } from './hosts.ts';
import { show } from './output.ts';

const GROUPS = [
  {
    options: {
      ...countOption('look for'),
      ...MEMORY,
      ...TOGETHER,
      ...VISIBLE_DEVICES,
      json: { help: 'print an array of the GPUs instead, as in `status --json`' },
      ...HOSTS_WITH_JSON,
      ...SIMULATE,
    },
  },
  CRITERIA_GROUP,
] as const satisfies readonly OptionGroup[];

async function find(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  const { request, visibleDevices } = checkClaim(values);
  if (isForHosts(values)) {
    if (visibleDevices === 'index')
      throw usageError(
        '--visible-devices index is for this machine only: with --hosts, GPUs are named by UUID',
      );
    return askFleet(
      'find',
      parsed,
      'gpus',
      ({ host, records }) => `${host}: ${formatVisibleDevices(records, 'uuid').CUDA_VISIBLE_DEVICES}`,
    );
  }
  const { chosen, gpus } = await findGPUs(request);
  const uuids = new Set(chosen.map(({ uuid }) => uuid));
  show(
    values.json
      ? gpus.filter(({ uuid }) => uuids.has(uuid)).map(gpuJSON)
      : formatVisibleDevices(chosen, visibleDevices, gpus).CUDA_VISIBLE_DEVICES,
  );
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Prints what CUDA_VISIBLE_DEVICES would be if GPUs were claimed now. It claims nothing: another claim can take the same GPUs at any time, so prefer \`run\`. It exits with 75 if not enough GPUs are free.`,
  groups: GROUPS,
  run: find,
};
