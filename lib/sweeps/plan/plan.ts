// Compares a sweep with its queue and its tables.

import { crc32 } from 'node:zlib';
import { sanitize } from '../../platform/index.ts';
import { isKnownAhead, openSweep, type SeededSearch, type Sweep, type SweepSource } from '../files/index.ts';
import {
  batchesOf,
  hasStarted,
  openQueue,
  type Queue,
  type State,
  startedCommand,
  type TaskRow,
} from '../queue/index.ts';
import { findLeft, isTrial } from '../search/index.ts';
import { findCompletedTasks } from '../tables/index.ts';
import { type TaskCommand, taskId } from '../task/index.ts';
import { asKnown } from './known-sweep.ts';
import { type PhasePlan, PLAN_STATES, type Plan, type PlanCounts, type PlannedTask } from './types.ts';

interface PlanOptions {
  /** The queue, which is only read. null: there is none yet. */
  queue: Pick<Queue, 'lookUp' | 'tasks' | 'attempts' | 'search'> | null;
  /** Tasks that have a row in a table of results, by their ids, and in which: see `findCompletedTasks`. */
  recorded?: ReadonlyMap<string, string>;
  /** Gets every task, in order. */
  onTask?: (task: PlannedTask) => void;
}

const FEW = 3;

const MAX_REASONS = 20;

const OTHER = 'other reasons';

const REPEATED = {
  state: 'repeated',
  why: 'equal to a task above: it runs once, and gets a row here, too',
} as const;

/** Beyond it nothing is remembered per task, and so repetitions are not seen. */
const MAX_TRACKED = 1_000_000;

const NO_CHECKSUM = checksum({ words: [] });

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
  const asked = await openSweep({ ...source, withoutCommand: true });
  const queue = await openQueue(url, directory, { create: false, mayBeReadOnly: true });
  try {
    const sweep = await asKnown(asked, queue, directory);
    const recorded = await findCompletedTasks(sweep, directory, queue);
    return await planSweep(sweep, { queue, recorded, ...(onTask && { onTask }) });
  } finally {
    await queue?.close();
  }
}

/** Finds out what running a sweep would do, given what the queue and the tables have. Changes nothing. */
export async function planSweep(sweep: Sweep, { queue, recorded, onTask }: PlanOptions): Promise<Plan> {
  const known = await knownTasks(queue);
  const missing = known && new Set(known.keys());
  const seen = new Map<string, number>();
  const counts = noCounts();
  const phases = new Map<string, PhasePlan>();
  let otherCommands = 0;
  let keepsCommands = false;
  const changed: string[] = [];
  for (const { name, size, factors, repeatedLines = 0 } of sweep.phases) {
    const phase = phases.get(name) ?? emptyPhase(name, factors);
    phases.set(name, phase);
    phase.size += size + repeatedLines;
    phase.counts.repeated += repeatedLines;
    counts.repeated += repeatedLines;
    if (repeatedLines > 0)
      phase.reasons.push({
        state: 'repeated',
        why: 'equal to a line above: it runs once',
        count: repeatedLines,
      });
  }
  for (const batch of batchesOf(sweep.tasks())) {
    const ids = batch.map(({ parameters }) => taskId(parameters));
    const rows = known === null && queue ? (await queue.lookUp(ids)).map((row) => row && knownTask(row)) : [];
    batch.forEach((spec, i) => {
      const id = ids[i] as string;
      const task = known?.get(id) ?? rows[i] ?? null;
      const phase = phases.get(spec.phase) as PhasePlan;
      const command = checksum(spec.command);
      const earlier = seen.get(id);
      if (seen.size < MAX_TRACKED && earlier === undefined) seen.set(id, command);
      missing?.delete(id);
      const other = earlier ?? task?.command ?? command;
      if (command !== NO_CHECKSUM && other !== NO_CHECKSUM && other !== command) {
        otherCommands++;
        keepsCommands ||= earlier !== undefined || task?.hasStarted === true;
        if (task !== null) changed.push(id);
      }
      const { state, why } =
        earlier !== undefined
          ? REPEATED
          : (imported(task, recorded?.get(id)) ?? task ?? { state: 'new' as const, why: null });
      const { outputDirectory, parameters } = spec;
      const name = task?.name ?? null;
      const planned = { id, name, phase: spec.phase, outputDirectory, parameters, state, why };
      counts[state]++;
      note(phase, planned);
      onTask?.(planned);
    });
  }
  if (sweep.search !== null && !isKnownAhead(sweep.search)) {
    const phase = phases.get(sweep.search.name) as PhasePlan;
    for (const planned of await plannedTrials(sweep.search, queue)) {
      missing?.delete(planned.id);
      counts[planned.state]++;
      note(phase, planned);
      onTask?.(planned);
    }
    const rest = Math.max(0, phase.size - Object.values(phase.counts).reduce((sum, each) => sum + each, 0));
    counts.new += rest;
    phase.counts.new += rest;
    if (rest > 0) phase.reasons.push({ state: 'new', why: 'each chosen when a worker is free', count: rest });
  }
  // Some may have been retried since they were started.
  while (!keepsCommands && changed.length > 0) {
    const attempts = await queue?.attempts({ taskId: changed.pop() as string });
    keepsCommands = attempts?.some(startedCommand) ?? false;
  }
  for (const phase of phases.values()) phase.reasons.sort((a, b) => b.count - a.count);
  const tracked = known !== null && missing !== null && seen.size < MAX_TRACKED;
  return {
    size: Array.from(phases.values()).reduce((sum, { size }) => sum + size, 0),
    counts,
    phases: Array.from(phases.values()),
    gone: tracked ? summarise(Array.from(missing, (id) => known.get(id) as KnownTask)) : null,
    otherCommands,
    keepsCommands,
  };
}

/** The trials of a search that are tasks already. */
async function plannedTrials(search: SeededSearch, queue: PlanOptions['queue']): Promise<PlannedTask[]> {
  const planned: PlannedTask[] = [];
  if (queue === null) return planned;
  const left = await findLeft(queue, search, search.seed, await queue.search());
  for await (const row of queue.tasks()) {
    if (!isTrial({ phase: search.name, left }, row.task)) continue;
    const { id, name, parameters } = row.task;
    const place = row.task.destinations.find(({ phase }) => phase === search.name);
    const { outputDirectory } = place as (typeof row.task.destinations)[0];
    planned.push({
      id,
      name,
      phase: search.name,
      outputDirectory,
      parameters,
      state: row.state,
      why: explain(row),
    });
  }
  return planned;
}

/** A task that isn't done gets its result from a table, if one has its row: before anything is run. */
function imported(
  task: KnownTask | null,
  table: string | undefined,
): Pick<PlannedTask, 'state' | 'why'> | null {
  if (table === undefined || task?.state === 'active' || task?.state === 'completed') return null;
  return { state: 'completed', why: `${sanitize(table, 200)} has its row` };
}

/** A task of the queue, as far as the plan needs it. */
interface KnownTask {
  name: string;
  state: State;
  why: string | null;
  /** A checksum. */
  command: number;
  hasStarted: boolean;
}

function knownTask(row: TaskRow): KnownTask {
  const { task, state } = row;
  return {
    name: task.name,
    state,
    why: explain(row),
    command: checksum(task.command),
    hasStarted: hasStarted(row),
  };
}

function checksum(command: TaskCommand): number {
  return crc32(JSON.stringify(command));
}

/** @returns the tasks of the queue; null: too many */
async function knownTasks(queue: PlanOptions['queue']): Promise<Map<string, KnownTask> | null> {
  let known: Map<string, KnownTask> | null = new Map();
  if (queue === null) return known;
  for await (const row of queue.tasks()) {
    known?.set(row.task.id, knownTask(row));
    if (known && known.size > MAX_TRACKED) known = null;
  }
  return known;
}

function summarise(gone: readonly KnownTask[]): Plan['gone'] {
  const { new: _, repeated: __, ...counts } = noCounts();
  for (const { state } of gone) counts[state]++;
  return {
    count: gone.length,
    counts,
    first: gone.slice(0, FEW).map(({ name, state }) => ({ name, state })),
  };
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
  else if (phase.reasons.length < MAX_REASONS) phase.reasons.push({ state, why, count: 1 });
  else {
    const other = phase.reasons.find((each) => each.state === state && each.why === OTHER);
    if (other) other.count++;
    else phase.reasons.push({ state, why: OTHER, count: 1 });
  }
}

function emptyPhase(phase: string, factors: readonly PhasePlan['factors'][0][]): PhasePlan {
  return {
    phase,
    size: 0,
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
