import { checkOptions, discover, type GPUStatus, gpuJSON } from '../claims/index.ts';
import { CRITERIA_GROUP, claimOptions, LOCKS, NAMES } from './claim-options.ts';
import type { Command } from './command.ts';
import { askFleet, HOSTS, isForHosts, watchFleet } from './hosts.ts';
import { type Parsed, refuseWords } from './options.ts';
import { hasColour, isTerminal, pageWidth, print } from './output.ts';
import { CLEAR, untilNext, WATCH, watchInterval } from './refresh.ts';
import { statusTable } from './status-table.ts';

async function status(parsed: Parsed): Promise<void> {
  const { values } = parsed;
  refuseWords(parsed);
  const { request } = checkOptions(claimOptions(values), [], NAMES);
  const interval = watchInterval(values);
  if (isForHosts(values)) {
    const show = ({ host, records }: { host: string; records: GPUStatus[] }) =>
      `${host}:\n${table(records)}\n`;
    return interval === null
      ? askFleet('status', parsed, 'gpus', show)
      : watchFleet('status', parsed, 'gpus', show, interval);
  }
  const show = async (prefix: string) => {
    const gpus = await discover(request, 'machine');
    print(
      prefix +
        (values.json ? JSON.stringify(gpus.map(gpuJSON), null, interval === null ? 2 : 0) : table(gpus)),
    );
  };
  if (interval === null) return show('');
  for (;;) {
    await show(
      isTerminal(1) && !values.json ? `${CLEAR}gpu-owner status  ${new Date().toLocaleTimeString()}\n` : '',
    );
    await untilNext(interval);
  }
}

function table(gpus: readonly GPUStatus[]): string {
  if (gpus.length === 0) return 'The driver reports no GPU.';
  return statusTable(gpus, { width: pageWidth(), colour: hasColour() });
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows every GPU: how much of it is used, and whether it is free, leased (and by whom), busy (used without a claim) or unavailable. It takes nothing and disturbs no claim.`,
  groups: [
    {
      options: {
        json: { help: 'print an array with an object per GPU; null is unknown' },
        ...WATCH,
        ...HOSTS,
        ...LOCKS,
      },
    },
    CRITERIA_GROUP,
  ],
  run: status,
};
