import { withQueue } from '../../experiments/index.ts';
import type { Command } from '../command.ts';
import { type Parsed, refuseWords } from '../options.ts';
import { print } from '../output.ts';
import { locationOf, QUEUE } from './options.ts';

async function resume(parsed: Parsed): Promise<void> {
  refuseWords(parsed);
  const { values } = parsed;
  await withQueue(locationOf(values), async (queue) => {
    const pause = await queue.paused();
    await queue.resume();
    const { pending } = await queue.counts();
    const waiting = `${pending} ${pending === 1 ? 'waits' : 'wait'} for a worker`;
    print(`${pause === null ? 'The experiment was not paused' : 'Tasks are started again'}: ${waiting}.`);
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Starts tasks again after \`gpu-owner exp pause\`, and after a pause because too many tasks failed in a row.`,
  groups: [{ options: QUEUE }],
  run: resume,
};
