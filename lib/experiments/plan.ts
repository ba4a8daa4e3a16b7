import { crc32 } from 'node:zlib';
import { sanitize } from '../text.ts';
import { Novelty } from './novelty.ts';
import { type Queue, STATES, type State, type TaskRow } from './queue/queue.ts';
import type { Sweep } from './sweep/sweep.ts';
import { type TaskSpec, taskId } from './task.ts';

/** `new`: not in the queue. `repeated`: equal to one that comes earlier in the sweep; it has one row more, and no run of its own. */
export type PlanState = 'new' | 'repeated' | State;

export const PLAN_STATES: readonly PlanState[] = ['new', ...STATES, 'repeated'];

export type PlanCounts = Record<PlanState, number>;

export interface PlannedTask {
  id: string;
  /** null: it gets one when it is enqueued. */
  name: string | null;
  phase: string;
  outputDirectory: string;
  parameters: TaskSpec['parameters'];
  state: PlanState;
  /** Why it is in that state: why it is new, what went wrong; null: nothing to say. */
  why: string | null;
}

export interface PhasePlan {
  phase: string;
  /** Equal tasks counted each time. */
  size: number;
  /** The parameters that have several values, and how many. */
  factors: { name: string; count: number }[];
  /** The first few. */
  outputDirectories: string[];
  counts: PlanCounts;
  /** Why tasks are in their states, the most frequent reasons first. */
  reasons: { state: PlanState; why: string | null; count: number }[];
  /** The first few that would run. */
  next: PlannedTask[];
}

export interface Plan {
  size: number;
  counts: PlanCounts;
  phases: PhasePlan[];
  /** What the queue has and the sweep hasn't; null: there are too many tasks to say. */
  gone: { count: number; counts: Record<State, number>; first: { name: string; state: State }[] } | null;
  /** Tasks that the queue, or an earlier phase, has with another command. */
  otherCommands: number;
}

export interface PlanOptions {
  /** It is only asked. null: there is none yet. */
  queue: Pick<Queue, 'lookUp' | 'tasks'> | null;
  /** Without a queue: which of the tasks have a row in a table of results, and in which file. */
  doneIn?: (tasks: readonly TaskSpec[]) => Promise<readonly (string | null)[]>;
  /** Gets every task, in order. */
  onTask?: (task: PlannedTask) => void;
}

const BATCH = 500;
const FEW = 3;
const MOST_REASONS = 20;
/** Beyond it nothing is remembered per task, and so repetitions are not seen. */
const MOST_TRACKED = 1_000_000;

/** What running a sweep would do. Changes nothing. */
export async function planSweep(sweep: Sweep, { queue, doneIn, onTask }: PlanOptions): Promise<Plan> {
  const novelty = new Novelty();
  const missing = await knownTasks(queue, novelty);
  const seen = new Map<string, number>();
  const counts = noCounts();
  const phases = new Map<string, PhasePlan>();
  let otherCommands = 0;
  for (const { name, size, factors } of sweep.phases) {
    const phase = phases.get(name);
    if (phase) phase.size += size;
    else phases.set(name, emptyPhase(name, size, factors));
  }
  const axes = new Map(
    Array.from(phases, ([name, { factors }]) => [name, new Set(factors.map((factor) => factor.name))]),
  );

  for (const batch of batches(sweep.tasks())) {
    const ids = batch.map(({ parameters }) => taskId(parameters));
    const rows = queue ? await queue.lookUp(ids) : [];
    const tables = doneIn && !queue ? await doneIn(batch) : [];
    batch.forEach((spec, i) => {
      const id = ids[i] as string;
      const row = rows[i] ?? null;
      const phase = phases.get(spec.phase) as PhasePlan;
      const command = crc32(JSON.stringify(spec.command));
      const earlier = seen.get(id);
      if (seen.size < MOST_TRACKED && earlier === undefined) seen.set(id, command);
      missing?.delete(id);
      const hasCommand = !('words' in spec.command) || spec.command.words.length > 0;
      const known = earlier ?? (row ? crc32(JSON.stringify(row.task.command)) : command);
      if (hasCommand && known !== command) otherCommands++;
      const newBecause = () => novelty.why(spec.phase, spec.parameters, axes.get(spec.phase) ?? new Set());
      const { state, why } =
        earlier !== undefined
          ? { state: 'repeated' as const, why: 'equal to a task above: it runs once, and has a row here too' }
          : row
            ? { state: row.state, why: explain(row) }
            : tables[i]
              ? { state: 'completed' as const, why: `${sanitize(tables[i], 200)} has its row` }
              : { state: 'new' as const, why: newBecause() };
      const { outputDirectory, parameters } = spec;
      const planned = {
        id,
        name: row?.task.name ?? null,
        phase: spec.phase,
        outputDirectory,
        parameters,
        state,
        why,
      };
      counts[state]++;
      note(phase, planned);
      onTask?.(planned);
    });
  }
  for (const phase of phases.values()) phase.reasons.sort((a, b) => b.count - a.count);
  const tracked = missing !== null && seen.size < MOST_TRACKED;
  return {
    size: sweep.size,
    counts,
    phases: Array.from(phases.values()),
    gone: tracked ? await summarise(missing, queue) : null,
    otherCommands,
  };
}

/** @returns the tasks of the queue; null: too many */
async function knownTasks(queue: PlanOptions['queue'], novelty: Novelty): Promise<Map<string, State> | null> {
  let known: Map<string, State> | null = new Map();
  if (queue === null) return known;
  for await (const { task, state } of queue.tasks()) {
    novelty.add(task);
    known?.set(task.id, state);
    if (known && known.size > MOST_TRACKED) known = null;
  }
  return known;
}

async function summarise(
  gone: ReadonlyMap<string, State>,
  queue: PlanOptions['queue'],
): Promise<Plan['gone']> {
  const counts = noCounts();
  for (const state of gone.values()) counts[state]++;
  const rows = (await queue?.lookUp(Array.from(gone.keys()).slice(0, FEW))) ?? [];
  const first = rows.flatMap((row) => (row ? { name: row.task.name, state: row.state } : []));
  const { new: _, repeated: __, ...states } = counts;
  return { count: gone.size, counts: states, first };
}

function* batches(tasks: Iterable<TaskSpec>): Generator<TaskSpec[]> {
  let batch: TaskSpec[] = [];
  for (const task of tasks) {
    batch.push(task);
    if (batch.length < BATCH) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}

function explain({ state, starts, error, source }: TaskRow): string | null {
  const wrong = sanitize(error?.split('\n')[0] ?? '', 120);
  if (state === 'completed') return source === 'table' ? 'its row was found in a table' : 'a worker ran it';
  if (state === 'failed') return wrong || null;
  if (state === 'pending' && starts > 0)
    return `started ${starts === 1 ? 'once' : `${starts} times`} so far${wrong && `: ${wrong}`}`;
  return null;
}

function note(phase: PhasePlan, task: PlannedTask): void {
  const { state, why, outputDirectory } = task;
  phase.counts[state]++;
  if (phase.outputDirectories.length < FEW && !phase.outputDirectories.includes(outputDirectory)) {
    phase.outputDirectories.push(outputDirectory);
  }
  if ((state === 'new' || state === 'pending') && phase.next.length < FEW) phase.next.push(task);
  const reason = phase.reasons.find((each) => each.state === state && each.why === why);
  if (reason) reason.count++;
  else if (phase.reasons.length < MOST_REASONS) phase.reasons.push({ state, why, count: 1 });
  else {
    const other = phase.reasons.find((each) => each.state === state && each.why === OTHER);
    if (other) other.count++;
    else phase.reasons.push({ state, why: OTHER, count: 1 });
  }
}

const OTHER = 'other reasons';

function emptyPhase(
  phase: string,
  size: number,
  factors: readonly { name: string; count: number }[],
): PhasePlan {
  return {
    phase,
    size,
    factors: [...factors],
    outputDirectories: [],
    counts: noCounts(),
    reasons: [],
    next: [],
  };
}

function noCounts(): PlanCounts {
  return Object.fromEntries(PLAN_STATES.map((state) => [state, 0])) as PlanCounts;
}
