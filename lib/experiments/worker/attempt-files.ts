import {
  closeSync,
  constants,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { EXCLUSIVE, native, OFD } from '../../native.ts';
import { giveTo, isShared } from '../project/index.ts';
import type { Attempt } from '../queue/index.ts';
import { seedOf, stringify } from '../task/index.ts';

/** In an attempt's directory: locked as long as anything of the attempt lives. Where there is none, the directory stays. */
const ALIVE = 'alive';
/** What mkdtemp adds to a name. */
const RANDOM = /-[A-Za-z0-9]{6}$/;

/** A directory of an attempt's own, for what the worker and its command tell each other. */
export class AttemptFiles {
  readonly directory: string;
  /** To be inherited by everything of the attempt. */
  readonly descriptor: number;

  private constructor(directory: string) {
    this.directory = directory;
    this.descriptor = lockedFile(join(directory, ALIVE));
  }

  /**
   * Removes those of earlier attempts at the task of which nothing lives: their worker was killed.
   * @param state the project's directory for such things @throws NodeJS.ErrnoException
   */
  static make(state: string, attempt: Attempt, worker: string): AttemptFiles {
    const parent = join(state, 'attempts');
    // Names of tasks may have anything in them.
    const name = attempt.task.name.replace(/[^A-Za-z0-9._-]/g, '_').slice(0, 100);
    // A local disk, and little to write: faster than by way of other threads.
    makeParent(parent);
    removeDead(parent, name);
    const files = new AttemptFiles(mkdtempSync(join(parent, `${name}-`)));
    writeFileSync(files.task, `${describe(attempt, worker)}\n`);
    return files;
  }

  /** Removes what workers that were killed have left, whatever their tasks were. Never fails. */
  static tidy(state: string): void {
    try {
      removeDead(join(state, 'attempts'), null);
    } catch {
      // There is none yet.
    }
  }

  get task(): string {
    return join(this.directory, 'task.json');
  }

  get result(): string {
    return join(this.directory, 'result.json');
  }

  /** Somebody shall look at the result. */
  keep(): void {
    rmSync(join(this.directory, ALIVE), { force: true });
    closeSync(this.descriptor);
  }

  /** Never fails: what can't be removed stays. */
  async remove(): Promise<void> {
    await rm(this.directory, { recursive: true, force: true }).catch(() => {});
    closeSync(this.descriptor);
  }
}

/** For all who work on the queue. */
function makeParent(path: string): void {
  try {
    mkdirSync(path, 0o700);
    const state = statSync(dirname(path));
    if (isShared(state)) giveTo(path, state.gid);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

/** @param task whose attempts; null: all. Never fails. */
function removeDead(parent: string, task: string | null): void {
  for (const name of readdirSync(parent)) {
    if (!RANDOM.test(name) || (task !== null && name.replace(RANDOM, '') !== task)) continue;
    try {
      if (isDead(join(parent, name))) rmSync(join(parent, name), { recursive: true, force: true });
    } catch {
      // Another time, or somebody else does.
    }
  }
}

/** Has it been an attempt's, and nothing of that lives? @throws NodeJS.ErrnoException if it isn't known */
function isDead(directory: string): boolean {
  const descriptor = openSync(join(directory, ALIVE), constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    return native().lockProbe(descriptor, OFD, EXCLUSIVE, 0, 1) === -1;
  } finally {
    closeSync(descriptor);
  }
}

/** It gets its name once it is locked. */
function lockedFile(path: string): number {
  const descriptor = openSync(`${path}.new`, 'wx');
  native().lockTry(descriptor, OFD, EXCLUSIVE, 0, 1);
  renameSync(`${path}.new`, path);
  return descriptor;
}

/** What GPU_OWNER_TASK leads to. */
function describe({ task, start }: Attempt, worker: string): string {
  const { id, name, parameters, places } = task;
  return stringify({
    id,
    name,
    phase: places[0]?.phase ?? '',
    parameters,
    seed: seedOf(parameters),
    output_dir: places[0]?.outputDirectory ?? '',
    start,
    worker,
  });
}
