import { withQueue } from '../../experiments/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print } from '../output.ts';
import { placeOf, QUEUE, QUEUE_HELP } from './options.ts';

const HELP = `Usage: gpu-owner exp pause [OPTIONS] [MESSAGE ...]

No task is started any more until \`gpu-owner exp resume\`; those that run go on
to their end. Workers stay, and let their GPUs go after a while. The message is
what others are shown.

${QUEUE_HELP}
${EVERY_HELP}`;

const OPTIONS = QUEUE;

async function pause(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  await withQueue(placeOf(values), async (queue) => {
    await queue.pause('person', positionals.join(' '));
    const { active } = await queue.counts();
    const running =
      active === 0 ? 'none runs' : `${active === 1 ? 'one that runs goes' : `${active} that run go`} on`;
    print(`Paused: no task is started any more; ${running}. To go on: gpu-owner exp resume`);
  });
}

export const COMMAND: Command = { run: pause, help: HELP, options: OPTIONS };
