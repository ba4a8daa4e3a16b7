// A sweep in the background: its job has no GPUs, and its controller says how far it is.
import { closeSync } from 'node:fs';
import { setVariables } from '../platform/index.ts';
import { type JobProgress, writeBlock } from './job-record.ts';
import { JobStore } from './job-store.ts';

/** Tells a controller that it is a job, by the number. Tasks don't inherit the variable. */
const VARIABLE = 'GPU_OWNER_SWEEP_JOB';

/** Notes in its job's file how many tasks of a sweep have ended. */
export class SweepProgress {
  /** The job's number. */
  readonly id: number;
  #noted = '';

  private constructor(id: number) {
    this.id = id;
  }

  /** So that the program that this process becomes knows that it is the controller of that job. */
  static announce(id: number): void {
    setVariables({ [VARIABLE]: String(id) });
  }

  /** null: this process isn't in the background. */
  static take(): SweepProgress | null {
    const id = Number(process.env[VARIABLE] ?? Number.NaN);
    setVariables({ [VARIABLE]: undefined });
    return Number.isSafeInteger(id) && id > 0 ? new SweepProgress(id) : null;
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
    } catch {}
  }
}
