import { withQueue } from '../../experiments/index.ts';
import { parse, refuseWords } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print } from '../output.ts';
import { placeOf, QUEUE, QUEUE_HELP } from './options.ts';

const HELP = `Usage: gpu-owner exp resume [OPTIONS]

Tasks are started again after \`gpu-owner exp pause\`, and after a pause that
workers made because too many tasks failed one after the other.

${QUEUE_HELP}
${EVERY_HELP}`;

const OPTIONS = QUEUE;

async function resume(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  await withQueue(placeOf(values), async (queue) => {
    const pause = await queue.paused();
    await queue.resume();
    const { pending } = await queue.counts();
    print(
      `${pause === null ? 'It was not paused' : 'Tasks are started again'}: ${pending} wait for a worker.`,
    );
  });
}

export const COMMAND: Command = { run: resume, help: HELP, options: OPTIONS };
