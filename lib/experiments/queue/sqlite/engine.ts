import { closeSync } from 'node:fs';
import type { Pause, Queue } from '../queue.ts';
import { readCount, readPause, readRecord, readText } from '../records.ts';
import { attemptMethods } from './attempts.ts';
import { bulkMethods } from './bulk.ts';
import { Database } from './database.ts';
import { findOrphanedLocks, LockFile, MANAGER, warnOfOrphans } from './locks.ts';
import { queryMethods } from './queries.ts';
import { withoutNUL } from './schema.ts';
import { Watch } from './watch.ts';

/** Opens the queue in a file, which is made if need be. @param path absolute @throws ERR_QUEUE */
export async function openSQLiteQueue(path: string): Promise<Queue> {
  return (await open(path, true, false)) as Queue;
}

/** Opens the queue in a file; null: there is none. @param look whether a user who may only read gets it too @throws ERR_QUEUE */
export async function findSQLiteQueue(path: string, look = false): Promise<Queue | null> {
  return open(path, false, look);
}

async function open(path: string, create: boolean, look: boolean): Promise<Queue | null> {
  const database = await Database.open(path, create, look, findOrphanedLocks);
  if (database === null) return null;
  try {
    const locks = new LockFile(database.path, database.readOnly);
    const queue = assemble(database, locks);
    await warnOfOrphans(database, locks);
    return queue;
  } catch (error) {
    database.close();
    throw error;
  }
}

function assemble(database: Database, locks: LockFile): Queue {
  const watch = new Watch(database, locks);
  const leadership = leaderMethods(database, locks);
  return {
    url: `sqlite:${database.path}`,
    ...queryMethods(database, locks),
    ...attemptMethods(database, locks, watch),
    ...bulkMethods(database),
    ...pauseMethods(database),
    changed: (milliseconds, signal, since) => watch.changed(milliseconds, signal, since),
    get changeCount() {
      return watch.changeCount;
    },
    manage: leadership.manage,
    manager: leadership.manager,
    async close() {
      if (!database.isOpen) return;
      leadership.release();
      watch.close();
      locks.close();
      database.close();
    },
  };
}

function pauseMethods(database: Database): Pick<Queue, 'pause' | 'resume' | 'paused'> {
  const current = () => {
    const text = database.setting('pause');
    return text === null ? null : readPause(text);
  };
  return {
    pause(by, message) {
      return database.write(() => {
        const before = current();
        // A person's pause stands, and so does the first message.
        if (before?.by === 'person' || before?.by === by) return;
        const pause: Pause = { by, message, since: Date.now() };
        database.set('pause', JSON.stringify(pause));
      });
    },
    resume: () => database.write(() => database.set('pause', null)),
    paused: () => database.read(current),
  };
}

/** The manager as the database has it. */
interface StoredManager {
  host: string;
  pid: number;
  /** The inode of the lock file in which it holds its lock. */
  inode: string;
}

function leaderMethods(
  database: Database,
  locks: LockFile,
): Pick<Queue, 'manage' | 'manager'> & { release(): void } {
  /** The descriptor of the manager's lock, while this process manages. */
  let lock: number | null = null;
  const release = () => {
    if (lock !== null) closeSync(lock);
    lock = null;
  };
  const manager = async () => {
    const text = await database.read(() => database.setting('manager'));
    if (text === null) return null;
    const { host, pid, inode } = readRecord(text);
    if (!locks.isTaken(MANAGER, readText(inode))) return null;
    return { host: readText(host), pid: readCount(pid) };
  };
  return {
    release,
    manager,
    async manage({ host, pid }) {
      if ((await manager()) !== null) return null;
      const held = locks.take(MANAGER);
      if (held === null) return null;
      const stored: StoredManager = { host: withoutNUL(host), pid, inode: held.inode };
      try {
        await database.write(() => database.set('manager', JSON.stringify(stored)));
      } catch (error) {
        closeSync(held.descriptor);
        throw error;
      }
      lock = held.descriptor;
      return {
        release: async () => {
          if (lock === held.descriptor) release();
        },
      };
    },
  };
}
