import { GPUOwnerError } from '../../errors.ts';
import { resolveTasks, TaskLogs, withQueue } from '../../experiments/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print, say, write } from '../output.ts';
import { placeOf, QUEUE, QUEUE_HELP } from './options.ts';

const HELP = `Usage: gpu-owner exp logs [OPTIONS] NAME|ID

Prints the output of a task: of all its starts, each below a line that says
where and when. What it says at the moment comes with -f.

  -f, --follow              go on until the task has ended
${QUEUE_HELP}
${EVERY_HELP}`;

const OPTIONS = { ...QUEUE, follow: { type: 'boolean', short: 'f' } } as const;

async function logs(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  const [name] = positionals;
  if (name === undefined || positionals.length > 1) {
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', 'which task? gpu-owner exp logs NAME');
  }
  await withQueue(
    placeOf(values),
    async (queue) => {
      const [id] = await resolveTasks(queue, [name]);
      const output = { line: print, note: say, bytes: (bytes: Uint8Array) => write(1, bytes) };
      const logs = new TaskLogs(queue, id as string, placeOf(values).directory, output);
      await logs.print(values.follow === true);
    },
    true,
  );
}

export const COMMAND: Command = { run: logs, help: HELP, options: OPTIONS };
