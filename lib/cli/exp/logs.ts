import { usageError } from '../../platform/index.ts';
import { loadRunning, resolveTask, withQueue } from '../../sweeps/index.ts';
import type { Command } from '../command.ts';
import type { OptionGroup, Parsed } from '../command-line.ts';
import { print, say, write } from '../output.ts';
import { locationOf, QUEUE } from './queue-options.ts';

const GROUPS = [
  {
    options: { follow: { short: 'f', help: 'follow the output until the task has ended' }, ...QUEUE },
  },
] as const satisfies readonly OptionGroup[];

async function logs({ values, positionals }: Parsed<typeof GROUPS>): Promise<void> {
  const [name] = positionals;
  if (name === undefined || positionals.length > 1) {
    throw usageError('which task? gpu-owner exp logs NAME');
  }
  await withQueue(locationOf(values), async (queue) => {
    const id = await resolveTask(queue, name);
    const { directory } = locationOf(values);
    const output = {
      line: print,
      note: say,
      bytes: (bytes: Uint8Array) => write(1, bytes),
    };
    const { TaskLogs } = await loadRunning();
    const logs = new TaskLogs(queue, id, directory, output);
    await logs.print(values.follow === true);
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS] NAME|ID',
  about: `Prints the output of a task: of all its attempts, each below a line that says where and when it ran. With -f, it also prints new output as the task writes it.`,
  groups: GROUPS,
  run: logs,
};
