// Options of commands that start jobs in the background.
import type { JobAddress } from '../fleet/index.ts';
import { type JobElsewhere, type JobHooks, type JobOptions, parseMove } from '../jobs/index.ts';
import { formatMoment, parseMoment, usageError } from '../platform/index.ts';
import type { InferValues, OptionTable } from './command-line.ts';
import { addressOf, jobWords } from './job-address.ts';
import { print, say } from './output.ts';

export const ABOUT = {
  name: { value: 'NAME', help: "set the job's name, which other users see" },
  note: { value: 'TEXT', help: 'set a note, which other users see' },
} satisfies OptionTable;

export const JOB = {
  after: {
    value: 'JOB|TIME',
    isRepeatable: true,
    help: "start when that job (a number, a name, HOST:JOB, or a part) has ended, however it did, or not before TIME (22:00, 'friday 9:00', +2h)",
    candidates: 'job',
  },
  'after-ok': {
    value: 'JOB',
    isRepeatable: true,
    help: 'start when that job has ended with exit code 0, otherwise never; JOB_%a: each part after the same part of that array',
    candidates: 'job',
  },
  output: {
    value: 'FILE',
    help: "append its output to FILE; %j (or %A) is the job's number, %n (or %x) its name, %a a part's number",
    candidates: 'file',
  },
  notify: { help: 'notify you when the job starts and ends, by notifyCommand or notifyWebhook' },
} satisfies OptionTable;

/** Of jobs that may move, as sweeps don't. */
export const MOVE = {
  move: {
    value: 'KEY',
    help: 'be one of the places of a job that moves; for gpu-owner itself',
    isHidden: true,
  },
} satisfies OptionTable;

/** @throws ERR_INVALID_ARGUMENT. Ends this process if a host of another job doesn't answer */
export async function jobOptions(
  values: InferValues<typeof ABOUT & typeof JOB & typeof MOVE>,
): Promise<JobOptions> {
  const { name, note, output, notify = false } = values;
  const lists = wordsOf(values.after);
  const after = splitWords(lists.filter((word) => !isTime(word)));
  const now = Date.now();
  const times = lists.filter(isTime).map((word) => notBefore(word, now));
  const afterOk = splitWords(wordsOf(values['after-ok']));
  const elsewhere = [
    ...after.elsewhere.map((address) => ({ ...address, isOk: false })),
    ...afterOk.elsewhere.map((address) => ({ ...address, isOk: true })),
  ];
  const found: JobElsewhere[] =
    elsewhere.length === 0 ? [] : await (await import('./jobs-elsewhere.ts')).livingElsewhere(elsewhere, say);
  const move = values.move === undefined ? undefined : parseMove(values.move);
  return {
    ...{ name, note, after: after.here, afterOk: afterOk.here, elsewhere: found, move, output, notify },
    notBefore: times.length === 0 ? undefined : Math.max(...times),
  };
}

/** Whether a word is a time, and no job: '22:00', 'friday 9:00', 'tomorrow', '2026-01-31', '+2h'. */
function isTime(word: string): boolean {
  return /^\+|^\d{4}-\d\d-\d\d|(?:^|\s)\d{1,2}:\d\d$|^tomorrow$/i.test(word);
}

/** @throws ERR_INVALID_ARGUMENT */
function notBefore(word: string, now: number): number {
  const time = parseMoment(word, '--after', now);
  if (time >= now) return time;
  throw usageError(`--after: ${formatMoment(time)} is over; use a time to come`);
}

function wordsOf(lists: readonly string[] = []): string[] {
  const words = lists.flatMap((list) => list.split(','));
  return words
    .map((word) => word.trim())
    .flatMap((word) => (/_\d+-\d+$/.test(word) ? jobWords([word]) : [word]));
}

function splitWords(words: readonly string[]): { here: string[]; elsewhere: JobAddress[] } {
  const here: string[] = [];
  const elsewhere: JobAddress[] = [];
  for (const word of words) {
    const address = addressOf(word);
    if (address === null) here.push(word);
    else elsewhere.push(address);
  }
  return { here, elsewhere };
}

/** How a job tells its number, and follows jobs of other machines. If the number can't be printed, the job doesn't start: a second try would run it twice. */
export const JOB_HOOKS: JobHooks = {
  announce: (id, giveUp) =>
    print(String(id), () => {
      giveUp();
      say(`job ${id} was not started: its number can't be printed`);
    }),
  followElsewhere: async (jobs, tell) => (await import('./jobs-elsewhere.ts')).followJobs(jobs, tell),
};
