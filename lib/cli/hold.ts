import { becomeHolder, claimUntilInputCloses, parseTimeLimit } from '../jobs/index.ts';
import { shellWords } from '../platform/index.ts';
import {
  CRITERIA_GROUP,
  countOption,
  MEMORY,
  placeholderOption,
  TOGETHER,
  URGENT,
  VISIBLE_DEVICES,
  WAIT,
} from './claim-options.ts';
import { checkClaim } from './claim-values.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './command-line.ts';
import { refuseThrowAway } from './installation.ts';
import { waitLimits } from './wait-progress.ts';

const GROUPS = [
  {
    options: {
      ...countOption('claim'),
      ...MEMORY,
      ...TOGETHER,
      ...WAIT,
      ...URGENT,
      ...placeholderOption(
        'keep the GPUs visibly taken: auto (default), until a process shows on them, 60 s at most; keep; none',
      ),
      as: { value: 'TEXT', help: "show others this text as the holder's command" },
      ...VISIBLE_DEVICES,
      'lock-timeout': {
        value: 'DURATION',
        help: "wait for another claim's decision for at most DURATION (default 2s)",
        candidates: ['2s', '10s'],
        isAdvanced: true,
      },
    },
  },
  CRITERIA_GROUP,
] as const satisfies readonly OptionGroup[];

async function hold(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values, args } = parsed;
  rejectOperands(parsed);
  refuseThrowAway();
  const limit = parseTimeLimit(undefined, undefined);
  const settings = checkClaim(values, {
    command: values.as || shellWords(['gpu-owner', 'hold', ...args]),
    claimantPid: process.ppid, // contexts outlive a claim, and are no reason not to have a GPU again
    ...(limit === null ? {} : { limitMs: limit.ms }),
  });
  const limits = waitLimits(values, false);
  const claim = await claimUntilInputCloses(settings, limits).finally(() => limits?.end());
  const devices = claim.gpus.map(({ index, instance, uuid, name }) => ({
    index,
    ...(instance === null ? {} : { instance }),
    uuid,
    name,
  }));
  const { shareBytes } = claim;
  const share = shareBytes === null ? {} : { memory: shareBytes };
  const visibleDevices = claim.variables.CUDA_VISIBLE_DEVICES;
  becomeHolder(claim, JSON.stringify({ devices, visibleDevices, ...share }), limit);
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Claims GPUs, prints one line of JSON, { "devices": [{ "index", "uuid", "name" }], "visibleDevices": "…" } (with --memory also "memory", in bytes), and holds the GPUs until standard input is closed or a signal comes. Programs in any language can claim GPUs with it: start it with a pipe as standard input, read the line, set CUDA_VISIBLE_DEVICES, and keep the pipe open.`,
  groups: GROUPS,
  run: hold,
};
