import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Attempt } from '../queue/queue.ts';
import { seedOf } from '../task.ts';
import { stringify } from '../written.ts';

/** A directory of an attempt's own, for what the worker and its command tell each other. */
export class AttemptFiles {
  readonly directory: string;

  private constructor(directory: string) {
    this.directory = directory;
  }

  /** @param state the project's directory for such things @throws NodeJS.ErrnoException */
  static make(state: string, attempt: Attempt, worker: string): AttemptFiles {
    const parent = join(state, 'attempts');
    // Names of tasks may have anything in them.
    const name = attempt.task.name.replace(/[^A-Za-z0-9._-]/g, '_').slice(0, 100);
    // A local disk, and little to write: faster than by way of other threads.
    mkdirSync(parent, { recursive: true });
    const files = new AttemptFiles(mkdtempSync(join(parent, `${name}-`)));
    writeFileSync(files.task, `${describe(attempt, worker)}\n`);
    return files;
  }

  get task(): string {
    return join(this.directory, 'task.json');
  }

  get result(): string {
    return join(this.directory, 'result.json');
  }

  /** Never fails: what can't be removed stays. */
  async remove(): Promise<void> {
    await rm(this.directory, { recursive: true, force: true }).catch(() => {});
  }
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
