// Commands about jobs of other machines.
import {
  ANSWER_TIMEOUT_MS,
  ANY,
  type AskedJobs,
  cancelMoving,
  commandOnHost,
  hostFailed,
  hostOf,
  type JobAddress,
  movingJob,
  placeOf,
  settledPlace,
  showOutput,
} from '../fleet/index.ts';
import { sanitize, usageError } from '../platform/index.ts';
import { print, say, write } from './output.ts';

export { followJobs, livingElsewhere } from '../fleet/index.ts';

/** The place of a job that moves, or its own address. Ends this process where it has no place: it has ended, or isn't submitted yet. */
async function placeNow(address: JobAddress): Promise<JobAddress> {
  if (address.host !== ANY) return address;
  const moving = movingJob(address.job);
  const { id, note, step } = moving;
  const place = placeOf(moving);
  if (place !== null) return place;
  say(`${ANY}:${id} ${step === 'settled' ? `has ended: ${note}` : 'is being put into a queue'}`);
  process.exit();
}

/** Prints the output of a job, and ends this process. */
export async function showLogs(
  address: JobAddress,
  wanted: { lines: number | null; follow: boolean },
): Promise<void> {
  const isMoving = address.host === ANY;
  const settled = isMoving && wanted.follow ? await settledPlace(address.job, say) : null;
  const { host: name, job } = settled ?? (await placeNow(address));
  const error = await showOutput(
    hostOf(name),
    job,
    { ...wanted, from: 0, isKnown: settled != null },
    (piece, bytes) => {
      if (piece.dropped > 0) say(`${piece.dropped} bytes of output were not kept there`);
      write(1, bytes);
    },
    (reason) => say(`${name}: ${reason}; trying again`),
  );
  if (error !== null) throw hostFailed(name, error);
  process.exit(); // connections may still be closing
}

/**
 * Runs a command about jobs on their hosts, prints what these say, and sets the exit code: the first that isn't 0.
 * @param words the command and its options @param last words that follow the jobs
 * @param graceMs how long a host may take besides
 * @param onLine called with each line of output
 */
export async function commandElsewhere(
  elsewhere: ReadonlyMap<string, AskedJobs>,
  words: readonly string[],
  last: readonly string[] = [],
  graceMs = 0,
  onLine: (host: string, line: string) => void = (_, line) => print(line),
): Promise<void> {
  await Promise.all(
    [...elsewhere].map(async ([name, asked]) => {
      if (name === ANY) {
        for (const { job } of asked) {
          const moving = movingJob(job);
          if (words[0] !== 'cancel' && moving.step !== 'settled')
            throw usageError(`${ANY}:${moving.id} still moves between machines; wait until it has started`);
          const place = words[0] === 'cancel' ? await cancelMoving(moving, say) : moving.at;
          if (place === null) {
            if (words[0] === 'cancel') continue;
            throw usageError(`${ANY}:${moving.id} has ended without a start: ${moving.note}`);
          }
          const asked = [{ job: String(place.id), at: 0 }];
          await commandElsewhere(new Map([[place.host, asked]]), words, last, graceMs, onLine);
        }
        return;
      }
      const all = [...words, ...asked.map(({ job }) => job), ...last];
      const answer = await commandOnHost(hostOf(name), all, ANSWER_TIMEOUT_MS + graceMs);
      if (answer.error !== null) {
        const { error, exitCode } = hostFailed(name, answer.error, answer.exitCode);
        say(error.message);
        process.exitCode ||= exitCode;
        return;
      }
      for (const line of lines(answer.output)) onLine(name, line);
      for (const line of lines(answer.notes)) say(`${name}: ${line.replace(/^gpu-owner: /, '')}`);
    }),
  );
}

function lines(text: string): string[] {
  return text
    .split('\n')
    .map((line) => sanitize(line, 500))
    .filter(Boolean);
}
