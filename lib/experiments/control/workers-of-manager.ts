import { sanitize } from '../../platform/index.ts';
import { describeEvent, firstLine } from '../manager/index.ts';
import { openProject } from '../project/index.ts';
import { RemoteQueue } from '../protocol/index.ts';
import type { WorkerEvent } from '../worker/index.ts';
import { leaveToOwner, ShutdownSignals } from './experiment.ts';
import { settingsFor, WorkerPool, type WorkerRequest } from './worker-pool.ts';

/** How often the manager is told what the workers do. */
const LINES_MS = 1_000;
/** Events that the manager knows itself. */
const KNOWN: readonly WorkerEvent['type'][] = ['assigned', 'completed', 'failed', 'given-back', 'revoked'];

/**
 * Runs workers for a manager on another machine, which speaks on standard input and listens on standard output: see {@link RemoteQueue}.
 * @param name of this machine, as the manager calls it
 */
export async function runWorkersOfManager(
  request: WorkerRequest,
  directory: string,
  name: string,
): Promise<void> {
  leaveToOwner();
  const project = { ...openProject(directory, { isOnServer: true }), host: name };
  const signals = new ShutdownSignals();
  let pool: WorkerPool | null = null;
  let ending: 'drain' | 'stop' | null = null;
  const end = (how: 'drain' | 'stop') => () => {
    ending = how;
    pool?.[how]();
  };
  const queue = await RemoteQueue.open(process.stdin, process.stdout, {
    drain: end('drain'),
    stop: end('stop'),
  });
  const { workers, ...settings } = await settingsFor(request, await queue.needs());
  // Commands are no part of this conversation.
  delete process.env.GPU_OWNER_ERRORS;
  const { pending, active } = await queue.counts();
  const search = await queue.search();
  const tasks = pending + active + (search === null || search.isOver ? 0 : search.trials);
  pool = new WorkerPool({
    ...settings,
    ...{ queue, project, host: name, workers: Math.min(workers, Math.max(1, tasks)) },
    report: (event) => {
      const text = KNOWN.includes(event.type) ? null : describeEvent(event);
      if (text !== null) queue.tell({ say: text });
    },
  });
  signals.forwardTo(pool, (text) => queue.tell({ say: text }));
  if (ending !== null) pool[ending as 'drain' | 'stop']();
  const timer = setInterval(() => tellLines(queue, pool as WorkerPool), LINES_MS);
  const ends = await pool.run();
  clearInterval(timer);
  queue.tell({
    ended: ends.map(({ why, message, error }) => ({
      why,
      message: message ?? (error === null ? null : sanitize(firstLine(error.message), 1_000)),
    })),
  });
  process.stdin.destroy();
  signals.close();
}

const told = new WeakMap<RemoteQueue, string>();

function tellLines(queue: RemoteQueue, { lines }: WorkerPool): void {
  const text = JSON.stringify(lines);
  if (told.get(queue) === text) return;
  told.set(queue, text);
  // The clocks of two machines differ.
  const now = Date.now();
  queue.tell({
    lines: lines.map(({ worker, doing, since }) => ({
      ...{ worker, doing, forMs: since === null ? null : now - since },
    })),
  });
}
