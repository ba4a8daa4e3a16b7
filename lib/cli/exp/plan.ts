import {
  asKnown,
  openQueue,
  openSweep,
  type Plan,
  type PlannedTask,
  type PlanOptions,
  planSweep,
  recordedTasks,
  type Sweep,
  stringify,
  type Value,
} from '../../experiments/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print } from '../output.ts';
import { planTable, taskLine } from './plan-table.ts';
import { projectOf, QUEUE, QUEUE_HELP, urlOf } from './queue-options.ts';
import { SWEEP, SWEEP_HELP, sweepSource } from './sweep-options.ts';

const HELP = `Usage: gpu-owner exp plan [OPTIONS] [FILE ...] [-- COMMAND [ARG ...]]

Shows what exp run would do with a sweep: what would run, what is done already,
and why tasks are new. It changes nothing, and needs no command.

  --all                     every task, not only the first few
  --json                    { size, counts, phases, gone, otherCommands }, and
                            with --all tasks: an array
${QUEUE_HELP}
${EVERY_HELP}

${SWEEP_HELP}`;

const OPTIONS = {
  ...SWEEP,
  ...QUEUE,
  all: { type: 'boolean' },
  json: { type: 'boolean' },
} as const;

async function plan(args: readonly string[]): Promise<void> {
  const parsed = parse(args, OPTIONS, 'behind-dashes');
  const { values } = parsed;
  if (values.help) return print(HELP);
  const project = projectOf(values);
  const asked = await openSweep({ ...sweepSource(parsed, project), withoutCommand: true });
  const queue = await openQueue(urlOf(values), projectOf(values), { create: false, look: true });
  try {
    const sweep = await asKnown(asked, queue);
    const recorded = await recordedTasks(sweep, projectOf(values), queue);
    await show(sweep, { queue, recorded }, values.json === true, values.all === true);
  } finally {
    await queue?.close();
  }
}

async function show(sweep: Sweep, options: PlanOptions, json: boolean, all: boolean): Promise<void> {
  const axes = new Map(sweep.phases.map(({ name, factors }) => [name, factors.map((factor) => factor.name)]));
  if (!json) {
    const onTask = (task: PlannedTask) => print(taskLine(task, axes.get(task.phase) ?? []));
    const planned = await planSweep(sweep, { ...options, ...(all ? { onTask } : {}) });
    return print(`${all ? '\n' : ''}${planTable(planned)}`);
  }
  if (!all) return print(planJSON(await planSweep(sweep, options)));
  // Written as they come: a hundred thousand tasks are many megabytes.
  let separator = '{"tasks":[\n';
  const onTask = (task: PlannedTask) => {
    print(separator + stringify(task as unknown as Value));
    separator = ',';
  };
  const planned = await planSweep(sweep, { ...options, onTask });
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
