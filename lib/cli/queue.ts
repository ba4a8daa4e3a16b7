import { getQueue, type QueueEntry } from '../claims/index.ts';
import { label } from '../gpus/index.ts';
import { fitColumns, formatDuration, formatSince, ordinal } from '../platform/index.ts';
import { claimOptions, LOCKS } from './claim-options.ts';
import type { Command } from './command.ts';
import { askFleet, HOSTS, isForHosts } from './hosts.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './options.ts';
import { pageWidth, print } from './output.ts';

const INDENT = ' '.repeat(5);

const GROUPS = [
  {
    options: {
      json: {
        help: 'print an array of { position, count, class, user, uid, pid, host, command, since, job, name, note, stopped, latestStart, waitUntil, reason, waitingFor: [{ index, uuid, reason }] }',
      },
      verbose: { short: 'v', help: 'print a line for each GPU that would do' },
      ...HOSTS,
      ...LOCKS,
    },
  },
] as const satisfies readonly OptionGroup[];

async function queue(parsed: Parsed<typeof GROUPS>): Promise<void> {
  rejectOperands(parsed);
  const list = (entries: readonly QueueEntry[]) =>
    entries.length === 0
      ? 'Nobody is waiting.'
      : entries.map((entry) => paragraph(entry, parsed.values.verbose === true)).join('\n');
  if (isForHosts(parsed.values))
    return askFleet('queue', parsed, 'queue', ({ host, records }) => `${host}:\n${list(records)}\n`);
  const { lockDirectory, conventions } = claimOptions(parsed.values);
  const entries = await getQueue({ lockDirectory, conventions });
  if (parsed.values.json) print(JSON.stringify(entries, null, 2));
  else print(list(entries));
}

/** @param isWhole a line per GPU rather than one for all */
function paragraph(entry: QueueEntry, isWhole: boolean): string {
  const { position, count, user, pid, command, since, job, name, note, stopped, latestStart } = entry;
  const when = formatSince(since);
  const who = [
    `${count === 1 ? 'a GPU' : `${count} GPUs`} for ${user}`,
    when === null ? '' : ` since ${when}`,
    pid === null ? '' : ` (pid ${pid}${command === null ? '' : `: ${command}`})`,
    [job === null ? '' : `, job ${job}`, name === null ? '' : `${job === null ? ', ' : ' '}${name}`].join(''),
    stopped ? ', suspended: skipped until it resumes' : '',
  ].join('');
  const reasons = isWhole
    ? entry.waitingFor.map((gpu) => `${INDENT}GPU ${label(gpu)}: ${gpu.reason}`)
    : [fitColumns(`${INDENT}${together(entry)}`, Math.max(pageWidth(), 60))];
  if (entry.reason !== null) reasons.unshift(`${INDENT}${ordinal(position)}: ${entry.reason}`);
  if (note !== null) reasons.unshift(`${INDENT}note: ${note}`);
  if (entry.waitUntil !== null) {
    const left = Date.parse(entry.waitUntil) - Date.now();
    reasons.unshift(`${INDENT}gives up in ${formatDuration(left)}`);
  }
  if (latestStart !== null) reasons.unshift(`${INDENT}starts at ${formatSince(latestStart)} at the latest`);
  return [`${String(position).padStart(3)}. ${who}`, ...reasons].join('\n');
}

/** 'GPU 0,1: leased by bob since 14:03; GPU 2: …' */
function together({ waitingFor }: QueueEntry): string {
  const byReason = new Map<string, string[]>();
  for (const gpu of waitingFor) {
    const reason = gpu.reason.replace(/ \(.*| *; note: .*/s, ''); // the holder and the end come first
    byReason.set(reason, [...(byReason.get(reason) ?? []), label(gpu)]);
  }
  return [...byReason].map(([reason, labels]) => `GPU ${labels.join(',')}: ${reason}`).join('; ');
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows which requests wait for GPUs on this machine, in the order in which they will be served, and what each of them waits for. It takes nothing.`,
  groups: GROUPS,
  run: queue,
};
