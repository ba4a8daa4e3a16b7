import type { Queue } from '../queue.ts';
import { parseAddress } from './address.ts';
import { attemptMethods } from './attempts.ts';
import { bulkMethods } from './bulk.ts';
import { Connection, checkFormat, checkServer } from './connection.ts';
import { Leadership } from './leader.ts';
import { LockRenewal } from './lock-renewal.ts';
import { queryMethods } from './queries.ts';
import { queueScripts } from './scripts.ts';

/**
 * Opens the queue of a project on Redis: see `parseAddress` for URLs.
 * @returns null: there is none, and it isn't to be made
 * @throws ERR_QUEUE, ERR_INVALID_ARGUMENT
 */
export async function openBullMQQueue(url: string, project: string, create: boolean): Promise<Queue | null> {
  const connection = await Connection.open(parseAddress(url, project), queueScripts);
  try {
    await checkServer(connection);
    if (await checkFormat(connection, create)) return assemble(connection);
  } catch (error) {
    connection.close();
    throw error;
  }
  connection.close();
  return null;
}

function assemble(connection: Connection): Queue {
  const renewal = new LockRenewal(connection);
  const leadership = new Leadership(connection, renewal);
  return {
    url: connection.address.url,
    ...queryMethods(connection),
    ...attemptMethods(connection, renewal),
    ...bulkMethods(connection),
    changed: (milliseconds, signal, since) => renewal.changed(milliseconds, signal, since),
    get changeCount() {
      return renewal.changeCount;
    },
    manage: (who) => leadership.take(who),
    manager: () => leadership.current(),
    async close() {
      if (connection.isClosed) return;
      // Without Redis, the leader's lock expires.
      if (connection.isReady) await leadership.release().catch(() => {});
      renewal.close();
      connection.close();
    },
  };
}
