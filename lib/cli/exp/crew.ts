import type { Settings, WaitingState } from '../../claims/index.ts';
import {
  describeEvent,
  firstLine,
  type Project,
  type Queue,
  type Tally,
  Worker,
  type WorkerEnd,
  type WorkerEvent,
} from '../../experiments/index.ts';
import type { WorkerLine } from './frame.ts';

export interface CrewOptions {
  queue: Queue;
  project: Project;
  settings: Settings;
  host: string;
  /** As for a worker, in ms; null: none. */
  grace: number | null;
  /** How many workers. */
  size: number;
  /** Something for the log. */
  record: (text: string) => void;
  /** A task has failed. */
  onFailure: (name: string, error: string) => void;
  /** Does somebody look on? */
  watched: boolean;
  /** Counts what they do. */
  tally: Tally;
}

const DOING: Record<string, string> = {
  paused: 'idle: paused',
  delayed: 'idle: the next task waits for its time',
  active: 'idle: the last tasks run elsewhere',
};

/** The workers of a process. */
export class Crew {
  readonly #workers: { worker: Worker; line: WorkerLine }[] = [];

  constructor({ size, record, onFailure, tally, ...options }: CrewOptions) {
    for (let number = 1; number <= size; number++) {
      const unnamed = size === 1 ? 'worker' : `worker ${number}`;
      const slot = {
        line: { worker: unnamed, doing: 'starts', since: Date.now() } as WorkerLine,
        worker: new Worker({
          ...options,
          report: (event) => {
            tally.event(event);
            slot.line = lineAfter(event, slot.line, unnamed);
            const text = describeEvent(event);
            if (text !== null) record(text);
            if (event.type === 'failed') onFailure(event.task.name, firstLine(event.error));
          },
        }),
      };
      this.#workers.push(slot);
    }
  }

  get lines(): WorkerLine[] {
    return this.#workers.map(({ line }) => line);
  }

  run(): Promise<WorkerEnd[]> {
    return Promise.all(this.#workers.map(({ worker }) => worker.run()));
  }

  drain(): void {
    for (const { worker } of this.#workers) worker.drain();
  }

  stop(): void {
    for (const { worker } of this.#workers) worker.stop();
  }
}

function lineAfter(event: WorkerEvent, before: WorkerLine, unnamed: string): WorkerLine {
  const since = Date.now();
  switch (event.type) {
    case 'assigned':
      return { worker: event.worker, doing: event.task.name, since };
    case 'claiming':
      // Of a wait, its beginning counts.
      return {
        worker: unnamed,
        doing: `waits for ${waitsFor(event.waiting)}`,
        since: before.doing.startsWith('waits for') ? before.since : since,
      };
    case 'claimed':
      return { worker: event.worker, doing: 'takes a task', since: null };
    case 'idle':
      return { worker: event.worker ?? unnamed, doing: DOING[event.why] ?? 'idle', since };
    case 'completed':
    case 'failed':
    case 'given-back':
    case 'revoked':
      return { worker: event.worker, doing: 'takes a task', since: null };
    case 'released':
      return event.why === 'idle' ? { ...before, worker: unnamed } : before;
    case 'stopped':
      return { worker: event.worker ?? before.worker, doing: `ended: ${endText(event.end)}`, since: null };
    default:
      return before;
  }
}

function waitsFor(state: WaitingState | null): string {
  if (state === null) return 'a GPU';
  const { count, position } = state;
  const place = position === null ? '' : ` (place ${position} in line)`;
  return `${count === 1 ? 'a GPU' : `${count} GPUs`}${place}`;
}

/** For those that ended before the work did: a line for each reason. */
export function whyStopped(ends: readonly WorkerEnd[]): string[] {
  const counts = new Map<string, number>();
  for (const end of ends) {
    if (!['failures', 'environment', 'error'].includes(end.why)) continue;
    const text = endText(end);
    counts.set(text, (counts.get(text) ?? 0) + 1);
  }
  return Array.from(
    counts,
    ([text, count]) => `${count === 1 ? 'a worker has' : `${count} workers have`} stopped: ${text}`,
  );
}

/** Why a worker has ended, in a few words. */
function endText({ why, message, error }: WorkerEnd): string {
  switch (why) {
    case 'finished':
      return 'nothing is left to do';
    case 'drained':
    case 'stopped':
      return 'on request';
    default:
      return firstLine(message ?? error?.message ?? why);
  }
}
