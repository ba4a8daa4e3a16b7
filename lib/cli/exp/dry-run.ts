import { formatCount, sanitize } from '../../platform/index.ts';
import {
  type ExperimentLocation,
  formatValue,
  loadRunning,
  type PhasePlan,
  type Plan,
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
  const { planExperiment } = await loadRunning();
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

const MAX_NAME_LENGTH = 40;

/** A line per phase, below it the first tasks that would run. */
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
  return [...table, '', ...plan.phases.flatMap(details)].join('\n').trimEnd();
}

/** The parameters that tell a task from the others of its phase. The output directory is an axis at times, but no parameter. */
function choices(parameters: Values, axes: readonly string[]): string {
  const shown = axes.filter((key) => Object.hasOwn(parameters, key));
  return shown.map((key) => `${key}=${formatValue(parameters[key] as Value)}`).join(' ');
}

function numbers(size: number, { new: fresh, pending, active, completed, failed }: Plan['counts']): string[] {
  return [size, fresh + pending + active, completed, failed].map(formatCount);
}

function details({ phase, factors, next }: PhasePlan): string[] {
  const size = factors
    .map(({ name, count }) => (count === null ? name : `${name} ${formatCount(count)}`))
    .join(' x ');
  const axes = factors.map(({ name }) => name);
  const first = next.map(
    ({ parameters }) => `  ${sanitize(choices(parameters, axes), 300) || 'its only task'}`,
  );
  const title = `${shorten(phase)}${size ? `: ${sanitize(size, 300)}` : ''}`;
  return [first.length === 0 ? title : `${title}; next:`, ...first, ''];
}

function shorten(name: string): string {
  return sanitize(name, MAX_NAME_LENGTH);
}
