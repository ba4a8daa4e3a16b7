// The effect that a run of a sweep would have, as `exp run --dry-run` shows it: the sweep beside its queue and its tables.

import { isKnownAhead, openSweep, type Sweep, type SweepSource } from '../files/index.ts';
import { isTrial } from '../progress/index.ts';
import { batchesOf, openQueue, type Queue, STATES, type State } from '../queue/index.ts';
import { findLeft } from '../search/index.ts';
import { findCompletedTasks } from '../tables/index.ts';
import { type TaskSpec, taskId } from '../task/index.ts';

/** `new`: not in the queue. `repeated`: equal to one that comes earlier in the sweep; it has one row more, and no run of its own. */
export type PlanState = 'new' | 'repeated' | State;

const PLAN_STATES: readonly PlanState[] = ['new', ...STATES, 'repeated'];

export interface PlannedTask {
  id: string;
  /** null: it gets one when it is enqueued. */
  name: string | null;
  phase: string;
  outputDirectory: string;
  parameters: TaskSpec['parameters'];
  state: PlanState;
}

export interface PhasePlan {
  phase: string;
  /** Equal tasks counted each time. */
  size: number;
  /** The parameters that have several values, and how many; null: too many to count. */
  factors: { name: string; count: number | null }[];
  /** The first few. */
  outputDirectories: string[];
  counts: Record<PlanState, number>;
  /** The first few that would run. */
  next: PlannedTask[];
}

export interface Plan {
  size: number;
  counts: Record<PlanState, number>;
  phases: PhasePlan[];
}

interface PlanOptions {
  /** The queue, which is only read. null: there is none yet. */
  queue: Pick<Queue, 'lookUp' | 'tasks' | 'search'> | null;
  /** Tasks that have a row in a table of results, by their ids: see `findCompletedTasks`. */
  recorded?: Pick<ReadonlyMap<string, unknown>, 'has'>;
  /** Gets every task, in order. */
  onTask?: (task: PlannedTask) => void;
}

const FEW = 3;

/** Beyond it nothing is remembered per task, and so repetitions are not seen. */
const MAX_TRACKED = 1_000_000;

/** A sweep that is planned, and the project whose queue and tables it is compared with. */
interface PlanRequest {
  source: SweepSource;
  /** The project's directory. */
  directory: string;
  /** The queue; null: the one in the project. */
  url: string | null;
}

/**
 * Finds out what running a sweep would do in a project. Changes nothing.
 * @param onTask gets every task, in order
 */
export async function planExperiment(
  { source, directory, url }: PlanRequest,
  onTask?: (task: PlannedTask) => void,
): Promise<Plan> {
  const sweep = await openSweep(source);
  const queue = await openQueue(url, directory, { create: false });
  try {
    const recorded = await findCompletedTasks(sweep, directory, queue);
    return await planSweep(sweep, { queue, recorded, ...(onTask && { onTask }) });
  } finally {
    await queue?.close();
  }
}

/** Finds out what running a sweep would do, given what the queue and the tables have. Changes nothing. */
export async function planSweep(sweep: Sweep, { queue, recorded, onTask }: PlanOptions): Promise<Plan> {
  const phases = new Map<string, PhasePlan>();
  for (const { name, size, factors, repeatedLines } of sweep.phases) {
    const phase = phases.get(name) ?? emptyPhase(name, factors);
    phases.set(name, phase);
    phase.size += size + repeatedLines;
    phase.counts.repeated += repeatedLines;
  }
  const seen = new Set<string>();
  const add = (task: PlannedTask) => {
    note(phases.get(task.phase) as PhasePlan, task);
    onTask?.(task);
  };
  for (const batch of batchesOf(sweep.tasks())) {
    const ids = batch.map(({ parameters }) => taskId(parameters));
    const rows = queue === null ? [] : await queue.lookUp(ids);
    for (const [at, { phase, outputDirectory, parameters }] of batch.entries()) {
      const id = ids[at] as string;
      const row = rows[at] ?? null;
      const isRepeated = seen.has(id);
      if (seen.size < MAX_TRACKED) seen.add(id);
      const known = row?.state ?? 'new';
      const isRecorded = recorded?.has(id) === true && known !== 'active';
      const state = isRepeated ? 'repeated' : isRecorded ? 'completed' : known;
      add({ id, name: row?.task.name ?? null, phase, outputDirectory, parameters, state });
    }
  }
  if (sweep.search !== null && !isKnownAhead(sweep.search)) {
    const { search } = sweep;
    const phase = phases.get(search.name) as PhasePlan;
    const left = queue && (await findLeft(queue, search, search.seed, await queue.search()));
    for await (const { task, state } of queue?.tasks() ?? []) {
      if (left === null || !isTrial({ phase: search.name, left }, task)) continue;
      const { id, name, parameters } = task;
      const outputDirectory = task.destinations.find((each) => each.phase === search.name)?.outputDirectory;
      add({ id, name, phase: search.name, outputDirectory: outputDirectory as string, parameters, state });
    }
    phase.counts.new += Math.max(0, phase.size - sum(Object.values(phase.counts)));
  }
  const all = [...phases.values()];
  const counts = noCounts();
  for (const state of PLAN_STATES) counts[state] = sum(all.map((phase) => phase.counts[state]));
  return { size: sum(all.map(({ size }) => size)), counts, phases: all };
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((all, each) => all + each, 0);
}

function note(phase: PhasePlan, task: PlannedTask): void {
  const { state, outputDirectory } = task;
  phase.counts[state]++;
  if (phase.outputDirectories.length < FEW && !phase.outputDirectories.includes(outputDirectory)) {
    phase.outputDirectories.push(outputDirectory);
  }
  if ((state === 'new' || state === 'pending') && phase.next.length < FEW) phase.next.push(task);
}

function emptyPhase(phase: string, factors: readonly PhasePlan['factors'][0][]): PhasePlan {
  return { phase, size: 0, factors: [...factors], outputDirectories: [], counts: noCounts(), next: [] };
}

function noCounts(): Record<PlanState, number> {
  return Object.fromEntries(PLAN_STATES.map((state) => [state, 0])) as Record<PlanState, number>;
}
