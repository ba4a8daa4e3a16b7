import { getQueue, type QueueEntry } from '../claims/index.ts';
import { label } from '../gpus/index.ts';
import { formatSince } from '../platform/index.ts';
import { claimOptions, LOCKS } from './claim-options.ts';
import type { Command } from './command.ts';
import { askFleet, HOSTS, isForHosts } from './hosts.ts';
import { type Parsed, refuseWords } from './options.ts';
import { print } from './output.ts';

const MINUTE_MS = 60_000;
const INDENT = ' '.repeat(5);

async function queue(parsed: Parsed): Promise<void> {
  refuseWords(parsed);
  if (isForHosts(parsed.values))
    return askFleet('queue', parsed, 'queue', ({ host, records }) => `${host}:\n${list(records)}\n`);
  const { lockDirectory, conventions } = claimOptions(parsed.values);
  const entries = await getQueue({ lockDirectory, conventions });
  if (parsed.values.json) print(JSON.stringify(entries, null, 2));
  else print(list(entries));
}

function list(entries: readonly QueueEntry[]): string {
  return entries.length === 0 ? 'Nobody is waiting.' : entries.map(paragraph).join('\n');
}

function paragraph(entry: QueueEntry): string {
  const { position, count, user, pid, command, since, stopped, latestStart, waitingFor } = entry;
  const when = formatSince(since);
  const who = [
    `${count === 1 ? 'a GPU' : `${count} GPUs`} for ${user}`,
    when === null ? '' : ` since ${when}`,
    pid === null ? '' : ` (pid ${pid}${command === null ? '' : `: ${command}`})`,
    stopped ? ', suspended: skipped until it resumes' : '',
  ].join('');
  const reasons = waitingFor.map((gpu) => `${INDENT}GPU ${label(gpu)}: ${gpu.reason}`);
  if (latestStart !== null) reasons.unshift(`${INDENT}starts at ${minuteAfter(latestStart)} at the latest`);
  return [`${String(position).padStart(3)}. ${who}`, ...reasons].join('\n');
}

/** Seconds aren't shown, and cut off would promise too much. */
function minuteAfter(time: string): string | null {
  return formatSince(Math.ceil(Date.parse(time) / MINUTE_MS) * MINUTE_MS);
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows which requests wait for GPUs on this machine, in the order in which they will be served, and what each of them waits for. It takes nothing.`,
  groups: [
    {
      options: {
        json: {
          help: 'print an array of { position, count, user, uid, pid, host, command, since, job, name, note, stopped, latestStart, waitingFor: [{ index, uuid, reason }] }',
        },
        ...HOSTS,
        ...LOCKS,
      },
    },
  ],
  run: queue,
};
