// A sweep in the background: its job has no GPUs, and its controller says how far it is.

import { closeSync } from 'node:fs';
import { isFailure } from '../errors.ts';
import { type JobProgress, writeBlock } from './job-record.ts';
import { JobStore } from './job-store.ts';

/** Notes in its job's directory how many tasks of a sweep have ended. */
export class SweepProgress {
  /** The job's number. */
  readonly id: number;
  #noted = '';

  constructor(id: number) {
    this.id = id;
  }

  /** A failure is ignored: the sweep goes on without it, and the next note tries again. */
  note(done: number, total: number): void {
    const noted = `${done}/${total}`;
    if (noted === this.#noted) return;
    try {
      const store = JobStore.open();
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
