// A sweep in the background: its job has no GPUs, and its controller says how far it is.

import { closeSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { isFailure } from '../errors.ts';
import { readSmallFile } from '../platform/index.ts';
import type { SweepTrials } from '../shapes/index.ts';
import { type JobProgress, writeBlock } from './job-record.ts';
import { JobStore } from './job-store.ts';

/** The file's name, beside the job's. */
const FILE = 'trials';

/** Notes in its job's directory how many tasks of a sweep have ended, and their values. */
export class SweepProgress {
  /** The job's number. */
  readonly id: number;
  #noted = '';

  constructor(id: number) {
    this.id = id;
  }

  /**
   * A failure is ignored: the sweep goes on without it, and the next note tries again.
   * @param trials null: they aren't compared
   */
  note(done: number, total: number, trials: () => SweepTrials | null = () => null): void {
    const noted = `${done}/${total}`;
    if (noted === this.#noted) return;
    try {
      const store = JobStore.open();
      const found = trials();
      if (found !== null) {
        const path = join(store.directoryOf(this.id), FILE);
        writeFileSync(`${path}.new`, JSON.stringify(found), { mode: 0o600 });
        renameSync(`${path}.new`, path);
      }
      const progress = store.read(this.id)?.progress;
      if (progress == null) return;
      const file = store.openFile(this.id);
      if (writeBlock(file, 'progress', { ...progress, done, total } satisfies JobProgress))
        this.#noted = noted;
      closeSync(file);
    } catch (error) {
      if (!isFailure(error)) throw error;
    }
  }
}

/** The values that a sweep has noted, as JSON of {@link SweepTrials}; null: it is no sweep with a metric, or has no value yet. */
export function readSweepTrials(id: number): string | null {
  return readSmallFile(join(JobStore.open().directoryOf(id), FILE));
}
