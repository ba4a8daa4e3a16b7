// Commands about jobs of other machines.

import type { Host } from '../config/index.ts';
import { EXIT_CODES } from '../errors.ts';
import {
  askHosts,
  chooseHosts,
  commandOnHost,
  type FollowJobs,
  type HostFailure,
  type MovingJob,
  MovingJobs,
  showOutput,
  waitOnHost,
} from '../fleet/index.ts';
import {
  formatPart,
  isLiving,
  type Job,
  type JobElsewhere,
  type JobProcess,
  MOVED,
  wordOf,
} from '../jobs/index.ts';
import { sanitize, sleep } from '../platform/index.ts';
import type { JobAddress } from './job-address.ts';
import {
  ANY,
  cancelMoving,
  describe,
  movingJob,
  placeOf,
  settledPlace,
  stateWithoutStart,
  submitMoving,
} from './moving-jobs.ts';
import { usage } from './options.ts';
import { print, say, write } from './output.ts';

/** How long a host has to answer, in ms. */
const TIMEOUT_MS = 15_000;
const FOLLOW_MS = 1_000;

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

/** @throws ERR_INVALID_ARGUMENT */
export function hostOf(name: string): Host {
  return chooseHosts(name, 'HOST:JOB', '')[0] as Host;
}

/** Says why a host didn't do it. @returns the exit code for that */
function tell(host: string, error: HostFailure, exitCode: number | null = null): number {
  say(`${host}: ${error.message}`);
  const own = Object.entries(EXIT_CODES).find(([code]) => code === error.code)?.[1];
  return own ?? exitCode ?? EXIT_CODES.ERR_NO_DRIVER;
}

const tellLost = (host: string) => (reason: string) => say(`${host}: ${reason}; trying again`);

/**
 * Prints the output of a job, and ends this process.
 * @param from null: as it is; otherwise as JSON: where it begins, as `logs --over-ssh` takes it
 */
export async function showLogs(
  address: JobAddress,
  { from, ...wanted }: { lines: number | null; follow: boolean; from: string | null },
): Promise<void> {
  const isMoving = address.host === ANY;
  const settled = isMoving && wanted.follow ? await settledPlace(address.job) : null;
  const { host: name, job } = settled ?? (await placeNow(address));
  const error = await showOutput(
    hostOf(name),
    job,
    { ...wanted, from: from ?? '0', isKnown: settled != null },
    (piece, bytes) => {
      if (from !== null) return print(JSON.stringify([piece]));
      if (piece.dropped > 0) say(`${piece.dropped} bytes of output were not kept there`);
      write(1, bytes);
    },
    tellLost(name),
  );
  process.exit(error === null ? 0 : tell(name, error));
}

/** Jobs with all that is known of them, in the order of the addresses; null: a host didn't answer, and that was said. */
export async function jobsElsewhere(
  addresses: readonly JobAddress[],
  // biome-ignore lint/suspicious/noExplicitAny: fields of newer versions are shown, too
): Promise<any[] | null> {
  const found = await Promise.all(
    addresses.map(async (address) => {
      if (address.host === ANY) return movingElsewhere(movingJob(address.job));
      const { host, job } = address;
      const [answer] = await askHosts([hostOf(host)], 'jobs', ['jobs', '--json', job], TIMEOUT_MS, () => {});
      const error = answer?.error ?? null;
      if (error !== null) process.exitCode = tell(host, error);
      return answer?.records?.[0] === undefined ? null : { ...answer.records[0], host };
    }),
  );
  return found.every((job) => job !== null) ? found : null;
}

/** As {@link jobsElsewhere}, for a job that moves: where it stays, that host has to say. */
// biome-ignore lint/suspicious/noExplicitAny: fields of newer versions are shown, too
async function movingElsewhere(moving: MovingJob): Promise<any> {
  const listed = describe(moving);
  const place = moving.step === 'settled' ? placeOf(moving) : null;
  if (place === null) return { ...listed, directory: moving.directory, limit: null };
  const found = await jobsElsewhere([place]);
  if (found === null) {
    say(`${ANY}:${moving.id}: ${listed.reason}`);
    return null;
  }
  const reason = [listed.reason, found[0].reason].filter(Boolean).join('; ');
  return { ...found[0], host: ANY, id: moving.id, submitted: listed.submitted, reason };
}

/** Jobs of a host by their numbers or names; `at`: their place among all that a command is about. */
type Asked = readonly { job: string; at: number }[];

/** Waits for jobs of hosts. @param isKnown whether they have answered before @returns how each has ended, by its place; null: the signal came. Ends this process for what can't be waited for */
export async function waitElsewhere(
  elsewhere: ReadonlyMap<string, Asked>,
  signal: AbortSignal,
  isKnown = false,
): Promise<{ at: number; job: Job; address: string }[] | null> {
  const ends = await Promise.all(
    [...elsewhere].map(async ([name, asked]) => {
      if (name === ANY) return waitForMoving(asked, signal);
      const jobs = asked.map(({ job }) => job);
      const found = await waitOnHost(hostOf(name), jobs, tellLost(name), signal, isKnown);
      if (found.error !== null) process.exit(tell(name, found.error));
      return (
        found.jobs?.map((job, i) => {
          const { at, job: word } = asked[i] as Asked[number];
          const part = job.array && formatPart(job.array);
          return { at, job, address: `${name}:${part ?? wordOf(word, job.id)}` };
        }) ?? null
      );
    }),
  );
  return ends.some((each) => each === null) ? null : ends.flatMap((each) => each ?? []);
}

/** As {@link waitElsewhere}, for jobs that move: until all stay where they are, and then there, over one connection for each host. */
async function waitForMoving(
  asked: Asked,
  signal: AbortSignal,
): Promise<{ at: number; job: Job; address: string }[] | null> {
  const byHost = new Map<string, { job: string; at: number }[]>();
  const ends: { at: number; job: Job; address: string }[] = [];
  const addresses = new Map<number, string>();
  const places = await Promise.all(asked.map(({ job }) => settledPlace(job, signal)));
  for (const [i, { job: word, at }] of asked.entries()) {
    const place = places[i];
    if (place === undefined) return null;
    const moving = movingJob(word);
    const address = `${ANY}:${moving.id}`;
    addresses.set(at, address);
    if (place !== null) byHost.set(place.host, [...(byHost.get(place.host) ?? []), { job: place.job, at }]);
    else ends.push({ at, job: { ...describe(moving), state: stateWithoutStart(moving) }, address });
  }
  const found = await waitElsewhere(byHost, signal, true);
  return (
    found && [...ends, ...found.map((each) => ({ ...each, address: addresses.get(each.at) ?? each.address }))]
  );
}

/**
 * Runs a command about jobs on their hosts, prints what these say, and sets the exit code: the first that isn't 0.
 * @param words the command and its options
 * @param graceMs how long a host may take besides
 * @param onLine called with each line of output
 */
export async function commandElsewhere(
  elsewhere: ReadonlyMap<string, Asked>,
  words: readonly string[],
  graceMs: number,
  onLine: (host: string, line: string) => void = (_, line) => print(line),
): Promise<void> {
  await Promise.all(
    [...elsewhere].map(async ([name, asked]) => {
      if (name === ANY) {
        for (const { job } of asked) {
          if (words[0] === 'resubmit') {
            await resubmitMoving(movingJob(job), onLine);
            continue;
          }
          const place = await cancelMoving(movingJob(job));
          if (place === null) continue;
          await commandElsewhere(new Map([[place.host, [{ job: String(place.id), at: 0 }]]]), words, graceMs);
        }
        return;
      }
      const all = [...words, ...asked.map(({ job }) => job)];
      const answer = await commandOnHost(hostOf(name), all, TIMEOUT_MS + graceMs);
      if (answer.error !== null) {
        process.exitCode ||= tell(name, answer.error, answer.exitCode);
        return;
      }
      for (const line of lines(answer.output)) onLine(name, line);
      for (const line of lines(answer.notes)) say(`${name}: ${line.replace(/^gpu-owner: /, '')}`);
    }),
  );
}

/** Submits a job that has ended once more, to all hosts that it was submitted to. */
async function resubmitMoving(job: MovingJob, onLine: (host: string, line: string) => void): Promise<void> {
  const found = await movingElsewhere(job);
  if (found === null) return;
  if (found.state === 'moving' || isLiving(found.state))
    throw usage(`${ANY}:${job.id} has not ended: ${found.state}; cancel it first`);
  const giveUpAt = job.giveUpAt === null ? null : Date.now() + job.giveUpAt - job.submitted;
  const again = await submitMoving({ ...job, after: [], hosts: job.asked, giveUpAt });
  if (again !== null) onLine(ANY, String(again.id));
}

/** Jobs of hosts that a new one is to follow, by their numbers. Jobs that have ended as wanted are left out. */
export async function livingElsewhere(
  wanted: readonly (JobAddress & { isOk: boolean })[],
): Promise<JobElsewhere[]> {
  const found = await jobsElsewhere(wanted);
  if (found === null) process.exit();
  return wanted.flatMap(({ host, job, isOk }, i) => {
    const { id, array, state, exitCode } = found[i];
    if (array?.id === id) throw usage(`${host}:${job} has not begun; give the whole array, ${host}:${id}`);
    if (id === null) throw usage(`${host}:${job} is not a job of \`submit\``);
    if (isLiving(state) || (host === ANY && (found[i] as Job).state === 'moving'))
      return [{ host, id, isOk }];
    const why = isOk ? whyNotOk({ state, exitCode }) : null;
    if (why !== null)
      throw usage(`--after-ok ${host}:${job}: the job ${why}, so the new job would never start`);
    return [];
  });
}

/** Waits for the jobs of other machines that a job is to follow. @returns why it can't start; null: it can */
export function followElsewhere(job: JobProcess): Promise<string | null> {
  return followJobs(job.elsewhere, (reason) => job.waitsElsewhere(reason));
}

/** As {@link followElsewhere}. */
export const followJobs: FollowJobs = async (jobs, tell) => {
  tell(null);
  const names = [...new Set(jobs.map(({ host }) => host))];
  const obstacles = await Promise.all(
    names.map(async (name) => {
      const wanted = jobs.filter(({ host }) => host === name);
      const ids = wanted.map(({ id }) => String(id));
      const onLost = (reason: string) => tell(`${name}: ${reason}`);
      if (name === ANY) return followMoving(wanted, onLost);
      const found = await waitOnHost(hostOf(name), ids, onLost, undefined, true);
      return wanted.map(({ id, isOk }, i) => {
        const ended = found.jobs?.[i];
        const why = ended === undefined ? `can't be asked for: ${found.error?.message}` : whyNotOk(ended);
        return isOk && why !== null ? `it was to follow job ${name}:${id}, which ${why}` : null;
      });
    }),
  );
  return obstacles.flat().find((why) => why !== null) ?? null;
};

/** Waits for jobs that move. @returns as {@link followElsewhere}, of each */
function followMoving(wanted: readonly JobElsewhere[], onLost: (reason: string) => void) {
  const ends = wanted.map(async ({ id, isOk }) => {
    const ended = await endOfMoving(id, onLost);
    const why = ended === null ? 'is no longer known' : whyNotOk(ended);
    return isOk && why !== null ? `it was to follow job ${ANY}:${id}, which ${why}` : null;
  });
  return Promise.all(ends);
}

/**
 * Resolves with the end of a job, wherever that is; null: the job isn't known any more. Starts no mover, which would outlive the caller with
 * its locks: without one, the job starts where it stands.
 */
async function endOfMoving(
  id: number,
  onLost: (reason: string) => void,
): Promise<Pick<Job, 'state' | 'exitCode'> | null> {
  const moving = new MovingJobs();
  for (;;) {
    const job = moving.read(id);
    if (job === null) return null;
    const place = placeOf(job);
    const isSettled = job.step === 'settled';
    if (place === null && isSettled) return { state: stateWithoutStart(job), exitCode: null };
    if (place !== null) {
      const moved = new AbortController();
      const timer = setInterval(() => {
        if (moving.read(id)?.at?.key !== job.at?.key) moved.abort();
      }, FOLLOW_MS);
      const { jobs } = await waitOnHost(hostOf(place.host), [place.job], onLost, moved.signal, true);
      clearInterval(timer);
      const ended = jobs?.[0];
      if (ended === undefined && isSettled) return null;
      const hasLeft = ended?.state === 'lost' || ended?.reason?.includes(MOVED);
      if (ended !== undefined && (isSettled || !hasLeft)) return ended;
    }
    await sleep(FOLLOW_MS);
  }
}

function whyNotOk({ state, exitCode }: Pick<Job, 'state' | 'exitCode'>): string | null {
  if (state === 'completed') return null;
  if (state === 'failed') return `failed with exit code ${exitCode ?? 'unknown'}`;
  return state === 'lost' ? 'was lost' : 'was cancelled';
}

function lines(text: string): string[] {
  return text
    .split('\n')
    .map((line) => sanitize(line, 500))
    .filter(Boolean);
}
