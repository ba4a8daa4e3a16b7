import { crc32 } from 'node:zlib';
import { listWords, sanitize } from '../../platform/index.ts';
import {
  hasStarted,
  openQueue,
  type Queue,
  STATES,
  type State,
  startedCommand,
  type TaskRow,
} from '../queue/index.ts';
import { columnOf, columnsOfTable, findCompletedTasks, NAME_COLUMN } from '../results/index.ts';
import { openSweep, type Sweep, type SweepSource } from '../sweep/index.ts';
import {
  canonical,
  formatValue,
  type Task,
  type TaskCommand,
  type TaskSpec,
  taskId,
  type Value,
  type Values,
} from '../task/index.ts';

/** `new`: not in the queue. `repeated`: equal to one that comes earlier in the sweep; it has one row more, and no run of its own. */
export type PlanState = 'new' | 'repeated' | State;

const PLAN_STATES: readonly PlanState[] = ['new', ...STATES, 'repeated'];

type PlanCounts = Record<PlanState, number>;

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
  /** Tasks that the queue has and the sweep hasn't; null: there are too many tasks to say. */
  gone: { count: number; counts: Record<State, number>; first: { name: string; state: State }[] } | null;
  /** Tasks that the queue, or an earlier phase, has with another command. */
  otherCommands: number;
  /** Whether one of them keeps `exp run` from giving them the new command: it was started, or the sweep has two for it. */
  keepsCommands: boolean;
}

interface PlanOptions {
  /** The queue, which is only read. null: there is none yet. */
  queue: Pick<Queue, 'lookUp' | 'tasks' | 'attempts'> | null;
  /** Tasks that have a row in a table of results, by their ids, and in which: see `findCompletedTasks`. */
  recorded?: ReadonlyMap<string, string>;
  /** Gets every task, in order. */
  onTask?: (task: PlannedTask) => void;
}

/** Tasks per question to the queue. */
const BATCH = 500;
const FEW = 3;
const MAX_REASONS = 20;
const OTHER = 'other reasons';
const NO_AXES: ReadonlySet<string> = new Set();
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
 * @param listen gets the sweep, and returns what gets every task; undefined: they aren't wanted
 */
export async function planExperiment(
  { source, directory, url }: PlanRequest,
  listen: (sweep: Sweep) => ((task: PlannedTask) => void) | undefined,
): Promise<Plan> {
  const asked = await openSweep({ ...source, withoutCommand: true });
  const queue = await openQueue(url, directory, { create: false, mayBeReadOnly: true });
  try {
    const sweep = await asKnown(asked, queue, directory);
    const recorded = await findCompletedTasks(sweep, directory, queue);
    const onTask = listen(sweep);
    return await planSweep(sweep, { queue, recorded, ...(onTask && { onTask }) });
  } finally {
    await queue?.close();
  }
}

/** Finds out what running a sweep would do, given what the queue and the tables have. Changes nothing. */
export async function planSweep(sweep: Sweep, { queue, recorded, onTask }: PlanOptions): Promise<Plan> {
  const planDiff = new PlanDiff();
  const known = await knownTasks(queue, planDiff);
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
  const axes = new Map(
    Array.from(phases, ([name, { factors }]) => [name, new Set(factors.map((factor) => factor.name))]),
  );

  for (const batch of batches(sweep.tasks())) {
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
          : (imported(task, recorded?.get(id)) ??
            task ?? {
              state: 'new' as const,
              why: planDiff.why(spec.phase, spec.parameters, axes.get(spec.phase) ?? NO_AXES),
            });
      const { outputDirectory, parameters } = spec;
      const name = task?.name ?? null;
      const planned = { id, name, phase: spec.phase, outputDirectory, parameters, state, why };
      counts[state]++;
      note(phase, planned);
      onTask?.(planned);
    });
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
async function knownTasks(
  queue: PlanOptions['queue'],
  planDiff: PlanDiff,
): Promise<Map<string, KnownTask> | null> {
  let known: Map<string, KnownTask> | null = new Map();
  if (queue === null) return known;
  for await (const row of queue.tasks()) {
    planDiff.add(row.task);
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
  else if (phase.reasons.length < MAX_REASONS) phase.reasons.push({ state, why, count: 1 });
  else {
    const other = phase.reasons.find((each) => each.state === state && each.why === OTHER);
    if (other) other.count++;
    else phase.reasons.push({ state, why: OTHER, count: 1 });
  }
}

function emptyPhase(phase: string, factors: readonly { name: string; count: number }[]): PhasePlan {
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

/** The sweep as a project knows it: with the phase of its grid, and the seeds that its tasks have there. */
export async function asKnown(
  sweep: Sweep,
  queue: Pick<Queue, 'lookUp' | 'counts' | 'tasks'> | null,
  project: string,
): Promise<Sweep> {
  return withKnownSeeds(await inOwnPhase(sweep, queue, project), queue);
}

const GRID_PHASE = /^grid(?:-\d+)?$/;
/** So many phases of grids are looked for on the disk. */
const MAX_SEARCHED = 16;

/**
 * Names an unnamed grid: grids with other parameters have other phases, `grid`, `grid-2` and so on, so that their tables don't mix. A grid
 * with the same parameters goes on in its phase.
 */
async function inOwnPhase(sweep: Sweep, queue: Pick<Queue, 'tasks'> | null, project: string): Promise<Sweep> {
  const { unnamedGrid } = sweep;
  if (unnamedGrid === null) return sweep;
  const wanted = JSON.stringify(unnamedGrid.parameters);
  const sameOrNamed = (phase: string) => (phase === 'grid' ? sweep : unnamedGrid.named(phase));
  const taken = new Set<string>();
  for await (const { task } of queue?.tasks() ?? []) {
    const parameters = JSON.stringify(Object.keys(task.parameters).sort());
    for (const { phase } of task.destinations) {
      if (!GRID_PHASE.test(phase)) continue;
      if (parameters === wanted) return sameOrNamed(phase);
      taken.add(phase);
    }
  }
  // Without a queue, or with a new one, tables tell.
  let free: string | null = null;
  for (let number = 1; number <= MAX_SEARCHED || free === null; number++) {
    const phase = number === 1 ? 'grid' : `grid-${number}`;
    if (taken.has(phase)) continue;
    const directory = unnamedGrid.directoryOf(phase);
    const columns = directory === null ? null : await columnsOfTable(project, directory);
    if (columns === null) free ??= phase;
    else if (!isOfOthers(columns, unnamedGrid.parameters)) return sameOrNamed(phase);
    if (directory === null) break;
  }
  return sameOrNamed(free as string);
}

/** Whether a table has rows of ours, of a grid with other parameters. */
function isOfOthers(columns: readonly string[], parameters: readonly string[]): boolean {
  return columns.includes(NAME_COLUMN) && parameters.some((name) => !columns.includes(columnOf(name)));
}

/**
 * The sweep as the queue knows it. A queue from before tasks got a seed by default has them without one: they are these tasks, and
 * stay as they are.
 */
async function withKnownSeeds(sweep: Sweep, queue: Pick<Queue, 'lookUp' | 'counts'> | null): Promise<Sweep> {
  if (queue === null || Object.values(await queue.counts()).every((count) => count === 0)) return sweep;
  const known = new Set<string>();
  let batch: string[] = [];
  const lookUp = async () => {
    for (const row of await queue.lookUp(batch)) if (row !== null) known.add(row.task.id);
    batch = [];
  };
  for (const spec of sweep.tasks()) {
    if (spec.hasDefaultSeed && batch.push(taskId(unseeded(spec))) === BATCH) await lookUp();
  }
  await lookUp();
  if (known.size === 0) return sweep;
  return {
    ...sweep,
    *tasks() {
      for (const spec of sweep.tasks()) {
        const parameters = unseeded(spec);
        yield spec.hasDefaultSeed && known.has(taskId(parameters)) ? { ...spec, parameters } : spec;
      }
    },
  };
}

function unseeded({ parameters }: TaskSpec): TaskSpec['parameters'] {
  const { seed: _, ...others } = parameters;
  return others;
}

/** New values are named for parameters with at most this many. */
const MAX_VALUES = 1000;
/** Changes that are named; more of them are a different experiment. */
const MAX_CHANGES = 3;

interface KnownPhase {
  tasks: number;
  parameters: Map<string, KnownParameter>;
}

interface KnownParameter {
  tasks: number;
  /** Canonical, with a spelling of each; null: too many. */
  values: Map<string, Value> | null;
}

/** Says why a task is new, by what the known tasks of its phase have in common. Doesn't grow with their number. */
class PlanDiff {
  readonly #phases = new Map<string, KnownPhase>();

  /** A task that is known. */
  add({ destinations, parameters }: Pick<Task, 'destinations' | 'parameters'>): void {
    for (const { phase } of destinations) {
      const known = this.#phases.get(phase) ?? { tasks: 0, parameters: new Map() };
      this.#phases.set(phase, known);
      known.tasks++;
      for (const [key, value] of Object.entries(parameters)) {
        const parameter = known.parameters.get(key) ?? { tasks: 0, values: new Map() };
        known.parameters.set(key, parameter);
        parameter.tasks++;
        parameter.values?.set(canonical(value), value);
        if (parameter.values && parameter.values.size > MAX_VALUES) parameter.values = null;
      }
    }
  }

  /**
   * Why no known task has these parameters: "`momentum` was added". null: no task is known at all.
   * @param axes the parameters that have several values in the sweep
   */
  why(phase: string, parameters: Values, axes: ReadonlySet<string>): string | null {
    if (this.#phases.size === 0) return null;
    const known = this.#phases.get(phase);
    if (known === undefined) return 'its phase is new';
    const added = Object.keys(parameters).filter((key) => !known.parameters.has(key));
    const removed = Array.from(known.parameters)
      .filter(([key, { tasks }]) => tasks === known.tasks && !Object.hasOwn(parameters, key))
      .map(([key]) => key);
    if (added.length > 0 || removed.length > 0) {
      return [...changes(added, 'added'), ...changes(removed, 'removed')].join(', ');
    }
    const changed = Object.entries(parameters).flatMap(([key, value]) => {
      const values = known.parameters.get(key)?.values;
      if (!values || values.has(canonical(value))) return [];
      const [before] = values.values();
      return values.size === 1 && !axes.has(key)
        ? `${name(key)} changed from ${shown(before as Value)} to ${shown(value)}`
        : `${name(key)} = ${shown(value)} is new`;
    });
    if (changed.length === 0) return 'the combination is new';
    if (changed.length <= MAX_CHANGES) return changed.join(', ');
    return `${changed.slice(0, MAX_CHANGES).join(', ')}, and ${changed.length - MAX_CHANGES} more`;
  }
}

function changes(keys: readonly string[], what: string): string[] {
  if (keys.length === 0) return [];
  if (keys.length > MAX_CHANGES) return [`${keys.length} parameters were ${what}`];
  return [`${listWords(keys.map(name))} ${keys.length === 1 ? 'was' : 'were'} ${what}`];
}

function name(key: string): string {
  return `\`${sanitize(key, 60)}\``;
}

function shown(value: Value): string {
  return sanitize(formatValue(value), 60) || "''";
}
