import { getQueue, type QueueEntry } from '../claims/index.ts';
import { label } from '../gpus/index.ts';
import { formatSince } from '../platform/index.ts';
import { claimOptions, parse, refuseWords } from './arguments.ts';
import type { Command } from './command.ts';
import { COMMON_HELP } from './help.ts';
import { print } from './output.ts';

const HELP = `Usage: gpu-owner queue [OPTIONS]

Shows who stands in line for GPUs on this machine, in the order in which they
will be served, and what each waits for. It takes nothing.

  --json                    an array of { position, count, user, uid, pid, host,
                            command, since, stopped, waitingFor: [{ index, uuid,
                            reason }] }
${COMMON_HELP}`;

const OPTIONS = {
  json: { type: 'boolean' },
  'lock-dir': { type: 'string' },
  conventions: { type: 'string' },
} as const;
const INDENT = ' '.repeat(5);

async function queue(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  const { lockDirectory, conventions } = claimOptions(values);
  const entries = await getQueue({ lockDirectory, conventions });
  if (values.json) print(JSON.stringify(entries, null, 2));
  else print(entries.length === 0 ? 'Nobody is waiting.' : entries.map(paragraph).join('\n'));
}

export const COMMAND: Command = { run: queue, help: HELP, options: OPTIONS };

function paragraph(entry: QueueEntry): string {
  const { position, count, user, pid, command, since, stopped, waitingFor } = entry;
  const when = formatSince(since);
  const who = [
    `${count === 1 ? 'a GPU' : `${count} GPUs`} for ${user}`,
    when === null ? '' : ` since ${when}`,
    pid === null ? '' : ` (pid ${pid}${command === null ? '' : `: ${command}`})`,
    stopped ? ', stopped: passed over until it goes on' : '',
  ].join('');
  const reasons = waitingFor.map((gpu) => `${INDENT}GPU ${label(gpu)}: ${gpu.reason}`);
  return [`${String(position).padStart(3)}. ${who}`, ...reasons].join('\n');
}
