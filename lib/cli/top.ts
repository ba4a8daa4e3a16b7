import { checkOptions } from '../claims/index.ts';
import { nativeOrNull } from '../native.ts';
import { MAX_TIMER_MS, parseDuration, showValue } from '../platform/index.ts';
import { loadTop, MachineView, SORT_KEYS, type SortKey } from '../views/index.ts';
import { claimOptions, LOCKS, NAMES } from './claim-options.ts';
import type { Command } from './command.ts';
import { type Parsed, refuseWords, usage, type Values } from './options.ts';
import { isTerminal, write } from './output.ts';

const DEFAULT_INTERVAL = '1s';
const MIN_INTERVAL_MS = 100;
/** Where nobody knows how wide lines may be. */
const PLAIN_COLUMNS = 132;

async function top(parsed: Parsed): Promise<void> {
  const { values } = parsed;
  refuseWords(parsed);
  const { request } = checkOptions(claimOptions(values), [], NAMES);
  const options = { sort: sortKey(values), filter: String(values.filter ?? '').slice(0, 100) };
  const interval = Math.min(
    Math.max(MIN_INTERVAL_MS, parseDuration(values.interval ?? DEFAULT_INTERVAL, '--interval')),
    MAX_TIMER_MS,
  );
  const view = new MachineView(request);
  const { plainPicture, runTop } = await loadTop();
  if (isTerminal(1) && process.env.TERM !== 'dumb')
    return runTop(view, (onLook) => view.watch(interval, onLook), options);
  const show = (end: string) => write(1, plainPicture(view, columns(), options) + end);
  if (values.interval !== undefined) return view.watch(interval, () => show('\n'));
  await view.look();
  show('');
}

function sortKey({ sort = 'gpu' }: Values): SortKey {
  const key = SORT_KEYS.find((each) => each === sort);
  if (key !== undefined) return key;
  throw usage(`--sort: ${showValue(sort)} is unknown; use ${SORT_KEYS.join(', ')}`);
}

function columns(): number {
  return (isTerminal(1) && nativeOrNull()?.processColumns(1)) || Number(process.env.COLUMNS) || PLAIN_COLUMNS;
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows every GPU with its last minute, its holder and job, who waits, processes without a claim, and what each user has, until q is pressed; ? lists the keys. Without a terminal, or if TERM is dumb, it prints plain lines once. It takes nothing and disturbs no claim.`,
  groups: [
    {
      options: {
        interval: {
          value: 'DURATION',
          help: `look every DURATION (default ${DEFAULT_INTERVAL}); plain lines are then printed each time`,
          candidates: ['1s', '2s', '5s'],
        },
        sort: {
          value: 'KEY',
          help: `sort GPUs by ${SORT_KEYS.join(', ')} (default gpu)`,
          candidates: SORT_KEYS,
        },
        filter: { value: 'TEXT', help: 'show only GPUs, requests and processes with this text' },
        ...LOCKS,
      },
    },
  ],
  run: top,
};
