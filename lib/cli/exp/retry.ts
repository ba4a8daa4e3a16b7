import { GPUOwnerError } from '../../errors.ts';
import { resolveTasks, withQueue } from '../../experiments/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print } from '../output.ts';
import { placeOf, QUEUE, QUEUE_HELP, tasksNamed } from './options.ts';

const HELP = `Usage: gpu-owner exp retry [OPTIONS] failed|cancelled|NAME|ID ...

These tasks are started again, as if they had never been: all failed or all
cancelled ones, or those that are named. A completed one loses its result, and
its rows are taken out of the tables.

${QUEUE_HELP}
${EVERY_HELP}`;

const OPTIONS = QUEUE;
const STATES = ['failed', 'cancelled'] as const;

async function retry(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  if (positionals.length === 0) {
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', 'which tasks? gpu-owner exp retry failed, or NAME ...');
  }
  await withQueue(placeOf(values), async (queue) => {
    const states = STATES.filter((state) => positionals.includes(state));
    const named = positionals.filter((word) => !STATES.some((state) => state === word));
    const ids = Array.from(new Set(await resolveTasks(queue, named)));
    const again = ids.length > 0 ? await queue.retry({ ids }) : [];
    const names = [...again];
    for (const state of states) names.push(...(await queue.retry({ state })));
    const manager = await queue.manager();
    const who =
      names.length > 0 && manager === null ? ' gpu-owner exp run, or exp manager, goes on with them.' : '';
    const unchanged = ids.length - again.length;
    const rest =
      unchanged > 0 ? `; ${unchanged} ${unchanged === 1 ? 'runs or waits' : 'run or wait'} already` : '';
    print(`To be started again: ${tasksNamed(names)}${rest}.${who}`);
  });
}

export const COMMAND: Command = {
  run: retry,
  help: HELP,
  options: OPTIONS,
  operands: { first: [...STATES] },
};
