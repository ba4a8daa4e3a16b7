import { onWarning, sanitize } from '../../platform/index.ts';
import { describeEvent, firstLine } from '../manager/index.ts';
import { openProject } from '../project/index.ts';
import { ManagerConnection, RemoteQueue } from '../protocol/index.ts';
import type { WorkerEnd, WorkerEvent } from '../worker/index.ts';
import { leaveToOwner } from './experiment.ts';
import { ShutdownSignals } from './shutdown-signals.ts';
import { settingsFor, WorkerPool, type WorkerRequest } from './worker-pool.ts';

/** Events that the manager knows itself. */
const KNOWN: readonly WorkerEvent['type'][] = ['assigned', 'completed', 'failed', 'given-back', 'revoked'];

/**
 * Runs workers for a manager on another machine, which speaks on standard input and listens on standard output. They end with the connection.
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
  const connection = await ManagerConnection.open(process.stdin, process.stdout);
  onWarning((message) => connection.tell({ say: `warning: ${message}` }));
  Object.assign(process.env, connection.begin.environment);
  let pool: WorkerPool | null = null;
  let ending: 'drain' | 'stop' | null = null;
  const end = (how: 'drain' | 'stop') => () => {
    ending = how;
    pool?.[how]();
  };
  connection.listen({ drain: end('drain'), stop: end('stop') });
  const queue = new RemoteQueue(connection);
  try {
    const { workers, ...settings } = await settingsFor(request, await queue.gpusPerTask());
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
        if (text !== null) connection.tell({ say: text });
      },
    });
    signals.forwardTo(pool, (text) => connection.tell({ say: text }));
    if (ending !== null) pool[ending as 'drain' | 'stop']();
    connection.tell({ ended: (await pool.run()).map(endOf) });
  } finally {
    signals.close();
    process.stdin.destroy();
  }
}

function endOf({ why, message, error }: WorkerEnd) {
  return { why, message: message ?? (error === null ? null : sanitize(firstLine(error.message), 1_000)) };
}
