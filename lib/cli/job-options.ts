// Options of commands that start jobs in the background, and what becomes of such a job before its command starts.
import type { JobOptions, JobProcess } from '../jobs/index.ts';
import type { InferValues, OptionTable } from './options.ts';
import { print, say } from './output.ts';

/** As if SIGTERM had ended it. */
const CANCELLED = 143;

export const ABOUT = {
  name: { value: 'NAME', help: "set the job's name, which other users see" },
  note: { value: 'TEXT', help: 'set a note, which other users see' },
} satisfies OptionTable;

export const JOB = {
  after: {
    value: 'JOB',
    isRepeatable: true,
    help: 'start when that job has ended, however it did',
    candidates: 'job',
  },
  'after-ok': {
    value: 'JOB',
    isRepeatable: true,
    help: 'start when that job has ended with exit code 0, otherwise never',
    candidates: 'job',
  },
  output: {
    value: 'FILE',
    help: "append its output to FILE; %j is the job's number, %n its name",
    candidates: 'file',
  },
  notify: { help: 'notify you when the job starts and ends, by notifyCommand or notifyWebhook' },
  'as-job': { value: 'DESCRIPTORS', help: 'be the job; for gpu-owner itself', isHidden: true },
} satisfies OptionTable;

export function jobOptions(values: InferValues<typeof ABOUT & typeof JOB>): JobOptions {
  const { name, note, after = [], 'after-ok': afterOk = [], output, notify = false } = values;
  return { name, note, after, afterOk, output, notify };
}

/**
 * Prints the number of a job that is about to start. If that can't be printed, the job doesn't start: a second try would run it
 * twice.
 */
export function announce(id: number, giveUp: () => void): void {
  print(String(id), () => {
    giveUp();
    say(`job ${id} was not started: its number can't be told`);
  });
}

/** Waits for jobs that it is to follow, and ends this process if one that must end well didn't. */
export async function followOthers(job: JobProcess): Promise<void> {
  await job.followed();
  const { obstacle } = job;
  if (obstacle === null) return;
  job.fail(CANCELLED, obstacle);
  say(`cancelled: ${obstacle}`);
  process.exit(CANCELLED);
}
