import { type Plan, type PlannedTask, planSweep } from '../../experiments/plan.ts';
import { openSweep } from '../../experiments/sweep/sweep.ts';
import { stringify, type Value } from '../../experiments/written.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print } from '../output.ts';
import { planTable, taskLine } from './plan-table.ts';
import { SWEEP, SWEEP_HELP, sweepSource } from './sweep-options.ts';

const HELP = `Usage: gpu-owner exp plan [OPTIONS] [FILE ...] [-- COMMAND [ARG ...]]

Shows what exp run would do with a sweep: what would run, what is done already,
and why tasks are new. It changes nothing, and needs no command.

  --all                     every task, not only the first few
  --json                    { size, counts, phases, gone, otherCommands }, and
                            with --all tasks: an array
  --project DIR             the project (default: the current directory)
  --queue URL               its queue (default: in the project's .gpu-owner)
${EVERY_HELP}

${SWEEP_HELP}`;

const OPTIONS = {
  ...SWEEP,
  all: { type: 'boolean' },
  json: { type: 'boolean' },
  project: { type: 'string' },
  queue: { type: 'string' },
} as const;

async function plan(args: readonly string[]): Promise<void> {
  const parsed = parse(args, OPTIONS, 'behind-dashes');
  const { values } = parsed;
  if (values.help) return print(HELP);
  const project = (values.project as string | undefined) ?? '.';
  const sweep = await openSweep({ ...sweepSource(parsed, project), withoutCommand: true });
  const axes = new Map(sweep.phases.map(({ name, factors }) => [name, factors.map((factor) => factor.name)]));
  if (!values.json) {
    const onTask = (task: PlannedTask) => print(taskLine(task, axes.get(task.phase) ?? []));
    const planned = await planSweep(sweep, { queue: null, ...(values.all ? { onTask } : {}) });
    return print(`${values.all ? '\n' : ''}${planTable(planned)}`);
  }
  if (!values.all) return print(planJSON(await planSweep(sweep, { queue: null })));
  // Written as they come: a hundred thousand tasks are many megabytes.
  let separator = '{"tasks":[\n';
  const onTask = (task: PlannedTask) => {
    print(separator + stringify(task as unknown as Value));
    separator = ',';
  };
  const planned = await planSweep(sweep, { queue: null, onTask });
  print(`],\n${planJSON(planned).slice(1)}`);
}

/** Numbers as they were written. */
function planJSON(planned: Plan): string {
  return stringify(planned as unknown as Value);
}

export const COMMAND: Command = {
  run: plan,
  help: HELP,
  options: OPTIONS,
  operands: 'files-and-command-line',
};
