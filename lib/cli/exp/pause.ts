import { withQueue } from '../../experiments/index.ts';
import type { Command } from '../command.ts';
import type { Parsed } from '../options.ts';
import { print } from '../output.ts';
import { locationOf, QUEUE } from './options.ts';

async function pause({ values, positionals }: Parsed): Promise<void> {
  await withQueue(locationOf(values), async (queue) => {
    await queue.pause('person', positionals.join(' '));
    const { active } = await queue.counts();
    const running =
      active === 0
        ? 'none is running'
        : `${active} running ${active === 1 ? 'task continues' : 'tasks continue'}`;
    print(`Paused: no more tasks are started; ${running}. To resume: gpu-owner exp resume`);
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [MESSAGE ...]',
  about: `Starts no more tasks until \`gpu-owner exp resume\`. Running tasks continue to their end. Workers stay, and release their GPUs after a while. \`exp status\` and the workers show the message.`,
  groups: [{ options: QUEUE }],
  run: pause,
};
