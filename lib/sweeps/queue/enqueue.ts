// Tasks on their way into a queue, for all engines: they come in batches, each of which is added as a whole or not at all.
import { GPUOwnerError } from '../../errors.ts';
import { type Destination, stringifyValue, type TaskSpec, taskId } from '../task/index.ts';
import { DEFAULT_RETRIES, type Enqueued, type Queue, type State } from './queue.ts';
import { commandText, NO_COMMAND_TEXT, phaseInName, showCommand } from './records.ts';

export interface IncomingTask {
  readonly id: string;
  readonly spec: TaskSpec;
  /** Texts of parameters and command. */
  readonly parameters: string;
  readonly command: string;
}

/** The part of a known task that a task which comes once more may change. */
export interface KeptTask {
  readonly name: string;
  readonly state: State;
  command: string;
  destinations: readonly Destination[];
  retries: number;
}

type EnqueueOptions = NonNullable<Parameters<Queue['enqueue']>[1]>;

/** A batch for an engine. */
export interface Batch {
  readonly tasks: readonly IncomingTask[];
  /** @param known those that the queue has, by their ids @throws ERR_INVALID_ARGUMENT for equal parameters with different commands */
  merge(known: ReadonlyMap<string, KeptTask>): MergedBatch;
}

export interface MergedBatch {
  readonly enqueued: Enqueued;
  /** New tasks, in their order. */
  readonly fresh: ReadonlyMap<string, IncomingTask & { kept: KeptTask }>;
  /** Known ones that change. */
  readonly changed: ReadonlyMap<string, KeptTask>;
}

/** @param most tasks, and bytes, of a batch @param add adds one */
export async function enqueueInBatches(
  specs: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
  { signal }: EnqueueOptions,
  most: { tasks: number; bytes: number },
  add: (batch: Batch) => Promise<Enqueued>,
): Promise<Enqueued> {
  const total = noneEnqueued();
  /** The commands of earlier tasks by their ids: two tasks of one sweep must not replace each other's. */
  const earlier = new Map<string, string>();
  let tasks: IncomingTask[] = [];
  let bytes = 0;
  /** Mostly the same for all: then `earlier` has it once. */
  let command = '';
  /** The batch that is added while the next one is prepared. */
  let sent: Promise<void> = Promise.resolve();
  const send = async (batch: readonly IncomingTask[]) => {
    const { failed, ...counts } = await add({
      tasks: batch,
      merge: (each) => mergeBatch(batch, each, earlier),
    });
    for (const key of Object.keys(counts) as (keyof typeof counts)[]) total[key] += counts[key];
    total.failed.push(...failed);
    for (const { id, command } of batch) if (command !== NO_COMMAND_TEXT) earlier.set(id, command);
  };
  const flush = async () => {
    await sent;
    signal?.throwIfAborted();
    sent = send(tasks);
    sent.catch(() => {}); // the error is thrown by the next batch, or at the end
    tasks = [];
    bytes = 0;
  };
  try {
    for await (const spec of specs) {
      const parameters = stringifyValue(spec.parameters);
      const text = commandText(spec.command);
      if (text !== command) command = text;
      tasks.push({ id: taskId(spec.parameters), spec, parameters, command });
      bytes += parameters.length + command.length;
      if (tasks.length === most.tasks || bytes > most.bytes) await flush();
    }
    if (tasks.length > 0) await flush();
  } finally {
    await sent;
  }
  return total;
}

function noneEnqueued(): Enqueued {
  return { added: 0, known: 0, placed: 0, replaced: 0, failed: [], unreplaced: 0 };
}

/** @param earlier the commands of earlier batches */
function mergeBatch(
  batch: readonly IncomingTask[],
  known: ReadonlyMap<string, KeptTask>,
  earlier: ReadonlyMap<string, string>,
): MergedBatch {
  const enqueued = noneEnqueued();
  const fresh = new Map<string, IncomingTask & { kept: KeptTask }>();
  const merged = new Map<string, KeptTask>();
  const commands = new Map<string, string>();
  for (const task of batch) {
    const { id, spec, command } = task;
    // A task that is active or completed keeps another command than came for it.
    const came = commands.get(id) ?? earlier.get(id);
    if (command !== NO_COMMAND_TEXT) commands.set(id, command);
    const { phase, outputDirectory } = spec;
    const before = known.get(id);
    const kept = merged.get(id) ?? (before && { ...before });
    if (kept === undefined) {
      const made: KeptTask = {
        name: phaseInName(phase),
        state: 'pending',
        command,
        destinations: [{ phase, outputDirectory }],
        retries: spec.retries ?? DEFAULT_RETRIES,
      };
      merged.set(id, made);
      fresh.set(id, { ...task, kept: made });
      enqueued.added++;
      continue;
    }
    enqueued.known++;
    if (command !== (came ?? kept.command) && command !== NO_COMMAND_TEXT) {
      if (came !== undefined) throw conflictError(kept.name, came, command);
      const hasNone = kept.command === NO_COMMAND_TEXT;
      if (!hasNone && (kept.state === 'active' || kept.state === 'completed')) enqueued.unreplaced++;
      else {
        kept.command = command;
        if (!hasNone) enqueued.replaced++;
        if (!hasNone && kept.state === 'failed') enqueued.failed.push(id);
      }
    }
    if (spec.retries !== undefined) kept.retries = spec.retries;
    if (!kept.destinations.some((each) => each.phase === phase && each.outputDirectory === outputDirectory)) {
      kept.destinations = [...kept.destinations, { phase, outputDirectory }];
      enqueued.placed++;
    }
    merged.set(id, kept);
  }
  const changed = new Map<string, KeptTask>();
  for (const [id, before] of known) {
    const kept = merged.get(id);
    if (kept !== undefined && JSON.stringify(kept) !== JSON.stringify(before)) changed.set(id, kept);
  }
  return { enqueued, fresh, changed };
}

function conflictError(name: string, command: string, other: string): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `equal parameters, different commands: ${name}: ${showCommand(command)} and ${showCommand(other)}. A task is its parameters: make them differ.`,
  );
}
