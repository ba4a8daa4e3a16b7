import { withQueue } from '../../sweeps/index.ts';
import type { Command } from '../command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from '../command-line.ts';
import { print } from '../output.ts';
import { locationOf, QUEUE } from './queue-options.ts';

const GROUPS = [{ options: QUEUE }] as const satisfies readonly OptionGroup[];

async function pause({ values, positionals }: Parsed<typeof GROUPS>): Promise<void> {
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

async function resume(parsed: Parsed<typeof GROUPS>): Promise<void> {
  rejectOperands(parsed);
  const { values } = parsed;
  await withQueue(locationOf(values), async (queue) => {
    const pause = await queue.paused();
    const { pending } = await queue.counts();
    await queue.resume();
    const waiting = `${pending} ${pending === 1 ? 'waits' : 'wait'} for a worker`;
    print(`${pause === null ? 'The experiment was not paused' : 'Tasks are started again'}: ${waiting}.`);
  });
}

export const PAUSE: Command = {
  usage: '[OPTIONS] [MESSAGE ...]',
  about: `Starts no more tasks until \`gpu-owner exp resume\`. Running tasks continue to their end. Workers stay, and release their GPUs after a while. \`exp status\` and the workers show the message.`,
  groups: GROUPS,
  run: pause,
};

export const RESUME: Command = {
  usage: '[OPTIONS]',
  about: `Starts tasks again after \`gpu-owner exp pause\`, and after a pause because too many tasks failed in a row.`,
  groups: GROUPS,
  run: resume,
};
