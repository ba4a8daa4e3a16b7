import { listWords, sanitize } from '../../platform/index.ts';
import {
  type ExperimentLocation,
  formatValue,
  type PhasePlan,
  type Plan,
  type PlanState,
  planExperiment,
  type SweepSource,
  strictJSON,
  type Value,
  type Values,
} from '../../sweeps/index.ts';
import { alignColumns, print } from '../output.ts';

/** Prints what `exp run` would do with a sweep. Changes nothing, and needs neither a command nor a GPU. */
export async function dryRun(
  location: ExperimentLocation,
  source: SweepSource,
  isJSON: boolean,
): Promise<void> {
  if (!isJSON) return print(planTable(await planExperiment({ ...location, source })));
  const begin = '{"tasks":[\n';
  let separator = begin;
  // Tasks are printed as they come: a hundred thousand of them are many megabytes.
  const planned = await planExperiment({ ...location, source }, (task) => {
    print(separator + strictJSON(task as unknown as Value));
    separator = ',';
  });
  print(`${separator === begin ? begin : ''}],\n${strictJSON(planned as unknown as Value).slice(1)}`);
}

const STATES: Readonly<Record<PlanState, string>> = {
  new: 'new',
  pending: 'waiting in the task list',
  active: 'running',
  completed: 'done',
  failed: 'failed',
  cancelled: 'cancelled',
  repeated: 'repeated',
};
const MAX_NAME_LENGTH = 40;
const MAX_REASONS = 8;

/** A line per phase, below it why tasks are done or failed. */
function planTable(plan: Plan): string {
  const rows = plan.phases.map(({ phase, size, counts, outputDirectories }) => [
    shorten(phase),
    ...numbers(size, counts),
    outputDirectories.map((each) => sanitize(each, 60)).join(' '),
  ]);
  const total = ['all', ...numbers(plan.size, plan.counts), ''];
  const header = ['PHASE', 'TASKS', 'TO RUN', 'DONE', 'FAILED', 'OUTPUT DIRECTORIES'];
  const isNumber = (column: number) => column > 0 && column < header.length - 1;
  const table = alignColumns(
    plan.phases.length === 1 ? [header, ...rows] : [header, ...rows, total],
    isNumber,
  );
  return [...table, '', ...plan.phases.flatMap(details), ...footer(plan)].join('\n').trimEnd();
}

/** The parameters that tell a task from the others of its phase. The output directory is an axis at times, but no parameter. */
function choices(parameters: Values, axes: readonly string[]): string {
  const shown = axes.filter((key) => Object.hasOwn(parameters, key));
  return shown.map((key) => `${key}=${formatValue(parameters[key] as Value)}`).join(' ');
}

function numbers(size: number, { new: fresh, pending, active, completed, failed }: Plan['counts']): string[] {
  return [size, fresh + pending + active, completed, failed].map((each) => each.toLocaleString('en'));
}

function details({ phase, factors, reasons, next }: PhasePlan): string[] {
  const size = factors
    .map(({ name, count }) => (count === null ? name : `${name} ${count.toLocaleString('en')}`))
    .join(' x ');
  const lines = reasons.slice(0, MAX_REASONS).map(({ state, why, count }) => {
    const what = `${count.toLocaleString('en').padStart(9)} ${STATES[state]}`;
    return sanitizeEnd(`${what}${why === null ? '' : `: ${why}`}`);
  });
  const rest = reasons.slice(MAX_REASONS).reduce((sum, { count }) => sum + count, 0);
  if (rest > 0) lines.push(`${rest.toLocaleString('en').padStart(9)} for other reasons`);
  const axes = factors.map(({ name }) => name);
  const first = next.map(({ parameters }) =>
    sanitizeEnd(`${' '.repeat(12)}${choices(parameters, axes) || 'its only task'}`),
  );
  if (first.length > 0) lines.push('      next:', ...first);
  return [sanitizeEnd(`${shorten(phase)}${size ? `: ${size}` : ''}`), ...lines, ''];
}

function footer({ gone, otherCommands, keepsCommands }: Plan): string[] {
  const lines: string[] = [];
  if (gone === null) {
    lines.push('There are too many tasks to tell which are repeated, and which are no longer in the sweep.');
  } else if (gone.count > 0) {
    const states = Object.entries(gone.counts).filter(([, count]) => count > 0);
    const counts = listWords(states.map(([state, count]) => `${count} ${STATES[state as PlanState]}`));
    const names = gone.first.map(({ name }) => sanitize(name)).join(', ');
    const run = gone.counts.pending > 0 ? ' They still run, unless you cancel them (exp cancel).' : '';
    lines.push(
      `The queue has ${amount(gone.count)} that ${gone.count === 1 ? 'is' : 'are'} not in this sweep: ${counts} (${names}${gone.count > gone.first.length ? ', ...' : ''}).${run}`,
    );
  }
  if (otherCommands > 0) {
    lines.push(
      `${amount(otherCommands)} with equal parameters but another command: exp run ${keepsCommands ? 'refuses them without --replace-commands' : 'gives them the new one, as none of them was started'}.`,
    );
  }
  return lines;
}

function amount(count: number): string {
  return count === 1 ? '1 task' : `${count.toLocaleString('en')} tasks`;
}

function shorten(name: string): string {
  return sanitize(name, MAX_NAME_LENGTH);
}

/** Keeps the indentation. */
function sanitizeEnd(line: string): string {
  const indent = /^ */.exec(line)?.[0] ?? '';
  return indent + sanitize(line, 300);
}
