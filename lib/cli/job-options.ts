// Options of commands that start jobs in the background, and what becomes of such a job before its command starts.
import { GPUOwnerError } from '../errors.ts';
import {
  becomeKeeperWithoutGPUs,
  type JobElsewhere,
  type JobOptions,
  type JobProcess,
  parseMove,
  SweepProgress,
} from '../jobs/index.ts';
import { ownProgram } from '../platform/index.ts';
import { EXIT_CODES } from './exit-codes.ts';
import { addressOf, type JobAddress } from './job-address.ts';
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
    help: 'start when that job (a number, a name, or HOST:JOB) has ended, however it did',
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
    help: "append its output to FILE; %j (or %A) is the job's number, %n (or %x) its name, %a a part's number",
    candidates: 'file',
  },
  notify: { help: 'notify you when the job starts and ends, by notifyCommand or notifyWebhook' },
  move: {
    value: 'KEY',
    help: 'be one of the places of a job that moves; for gpu-owner itself',
    isHidden: true,
  },
  'as-job': { value: 'DESCRIPTORS', help: 'be the job; for gpu-owner itself', isHidden: true },
} satisfies OptionTable;

/** @throws ERR_INVALID_ARGUMENT. Ends this process if a host of another job doesn't answer */
export async function jobOptions(values: InferValues<typeof ABOUT & typeof JOB>): Promise<JobOptions> {
  const { name, note, output, notify = false } = values;
  const after = splitWords(values.after);
  const afterOk = splitWords(values['after-ok']);
  const elsewhere = [
    ...after.elsewhere.map((address) => ({ ...address, isOk: false })),
    ...afterOk.elsewhere.map((address) => ({ ...address, isOk: true })),
  ];
  const found: JobElsewhere[] =
    elsewhere.length === 0 ? [] : await (await import('./jobs-elsewhere.ts')).livingElsewhere(elsewhere);
  const move = values.move === undefined ? undefined : parseMove(values.move);
  return { name, note, after: after.here, afterOk: afterOk.here, elsewhere: found, move, output, notify };
}

function splitWords(lists: readonly string[] = []): { here: string[]; elsewhere: JobAddress[] } {
  const here: string[] = [];
  const elsewhere: JobAddress[] = [];
  for (const word of lists.flatMap((list) => list.split(',')).map((each) => each.trim())) {
    const address = addressOf(word);
    if (address === null) here.push(word);
    else elsewhere.push(address);
  }
  return { here, elsewhere };
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

/**
 * Becomes the job of a sweep, which has no GPUs of its own: its controller claims them.
 * @param words how many words of this process come before those of the user
 * @param controller the words of this program that are the controller, before those of the user
 */
export async function becomeSweepJob(
  job: JobProcess,
  words: number,
  controller: readonly string[],
): Promise<void> {
  try {
    job.start();
  } catch (error) {
    if (error instanceof GPUOwnerError) job.fail(EXIT_CODES[error.code], error.message, error.code);
    throw error;
  }
  await followOthers(job);
  job.begin();
  SweepProgress.announce(job.request.id);
  becomeKeeperWithoutGPUs(job, ownProgram(...controller), process.argv.length - 2 - words);
}

/** Waits for jobs that it is to follow, and ends this process if one that must end well didn't. */
export async function followOthers(job: JobProcess): Promise<void> {
  await job.followed();
  let { obstacle } = job;
  if (obstacle === null && job.elsewhere.length > 0)
    obstacle = await (await import('./jobs-elsewhere.ts')).followElsewhere(job);
  if (obstacle === null) return;
  job.fail(CANCELLED, obstacle);
  say(`cancelled: ${obstacle}`);
  process.exit(CANCELLED);
}
