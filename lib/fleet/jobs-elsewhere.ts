// Jobs of other machines by their addresses: what is known of them, and their ends.
import { checkHostName, type Host } from '../config/index.ts';
import { CommandEnd, type ErrorCode, EXIT_CODES, GPUOwnerError } from '../errors.ts';
import { formatPart, isLiving, type Job, type JobElsewhere, type JobHooks, wordOf } from '../jobs/index.ts';
import { sleep, usageError } from '../platform/index.ts';
import {
  ANY,
  type JobAddress,
  listedMoving,
  movingJob,
  placeOf,
  type Say,
  settledPlace,
  stateWithoutStart,
} from './any-jobs.ts';
import { askHosts, configuredHost } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';
import { type MovingJob, MovingJobs } from './moving-job.ts';
import { waitOnHost } from './remote-jobs.ts';

/** How long a host has to answer, in ms. */
export const ANSWER_TIMEOUT_MS = 15_000;
const FOLLOW_MS = 1_000;

/** @throws ERR_INVALID_ARGUMENT */
export function hostOf(name: string): Host {
  return configuredHost(checkHostName(name, 'HOST:JOB'));
}

/** Why a host didn't do it, with the exit code for that. */
export function hostFailed(host: string, { code, message }: HostFailure, exitCode: number | null = null) {
  const known = Object.hasOwn(EXIT_CODES, code) ? (code as ErrorCode) : null;
  const error = new GPUOwnerError(known ?? 'ERR_NO_DRIVER', `${host}: ${message}`);
  return new CommandEnd(error, known === null ? (exitCode ?? EXIT_CODES.ERR_NO_DRIVER) : EXIT_CODES[known]);
}

/** Jobs with all that is known of them, in the order of the addresses. @throws CommandEnd if a host doesn't answer */
export async function jobsElsewhere(
  addresses: readonly JobAddress[],
  say: Say,
  // biome-ignore lint/suspicious/noExplicitAny: fields of newer versions are shown, too
): Promise<any[]> {
  return Promise.all(
    addresses.map(async (address) => {
      if (address.host === ANY) return movingElsewhere(movingJob(address.job), say);
      const { host, job } = address;
      const words = ['jobs', '--json', job];
      const [answer] = await askHosts([hostOf(host)], 'jobs', words, ANSWER_TIMEOUT_MS, () => {});
      if (answer?.error) throw hostFailed(host, answer.error);
      return { ...answer?.records?.[0], host };
    }),
  );
}

/** As {@link jobsElsewhere}, for a job that moves: where it stays, that host has to say. */
// biome-ignore lint/suspicious/noExplicitAny: fields of newer versions are shown, too
async function movingElsewhere(moving: MovingJob, say: Say): Promise<any> {
  const listed = listedMoving(moving);
  const place = moving.step === 'settled' ? placeOf(moving) : null;
  if (place === null) return { ...listed, directory: moving.directory, limit: null };
  const [found] = await jobsElsewhere([place], say).catch((error: unknown) => {
    say(`${ANY}:${moving.id}: ${listed.reason}`);
    throw error;
  });
  const reason = [listed.reason, found.reason].filter(Boolean).join('; ');
  return { ...found, host: ANY, id: moving.id, submitted: listed.submitted, reason };
}

/** Jobs of a host by their numbers or names; `at`: their place among all that a command is about. */
export type AskedJobs = readonly { job: string; at: number }[];

/** Waits for jobs of hosts. @param isKnown whether they have answered before @returns how each has ended, by its place; null: the signal came @throws CommandEnd for what can't be waited for */
export async function waitElsewhere(
  elsewhere: ReadonlyMap<string, AskedJobs>,
  signal: AbortSignal,
  say: Say,
  isKnown = false,
): Promise<{ at: number; job: Job; address: string }[] | null> {
  const ends = await Promise.all(
    [...elsewhere].map(async ([name, asked]) => {
      if (name === ANY) return waitForMoving(asked, signal, say);
      const jobs = asked.map(({ job }) => job);
      const onLost = (reason: string) => say(`${name}: ${reason}; trying again`);
      const found = await waitOnHost(hostOf(name), jobs, onLost, signal, isKnown);
      if (found.error !== null) throw hostFailed(name, found.error);
      return (
        found.jobs?.map((job, i) => {
          const { at, job: word } = asked[i] as AskedJobs[number];
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
  asked: AskedJobs,
  signal: AbortSignal,
  say: Say,
): Promise<{ at: number; job: Job; address: string }[] | null> {
  const byHost = new Map<string, { job: string; at: number }[]>();
  const ends: { at: number; job: Job; address: string }[] = [];
  const addresses = new Map<number, string>();
  const places = await Promise.all(asked.map(({ job }) => settledPlace(job, say, signal)));
  for (const [i, { job: word, at }] of asked.entries()) {
    const place = places[i];
    if (place === undefined) return null;
    const moving = movingJob(word);
    const address = `${ANY}:${moving.id}`;
    addresses.set(at, address);
    if (place !== null) byHost.set(place.host, [...(byHost.get(place.host) ?? []), { job: place.job, at }]);
    else ends.push({ at, job: { ...listedMoving(moving), state: stateWithoutStart(moving) }, address });
  }
  const found = await waitElsewhere(byHost, signal, say, true);
  return (
    found && [...ends, ...found.map((each) => ({ ...each, address: addresses.get(each.at) ?? each.address }))]
  );
}

/** Jobs of hosts that a new one is to follow, by their numbers. Jobs that have ended as wanted are left out. */
export async function livingElsewhere(
  wanted: readonly (JobAddress & { isOk: boolean })[],
  say: Say,
): Promise<JobElsewhere[]> {
  const found = await jobsElsewhere(wanted, say);
  return wanted.flatMap(({ host, job, isOk }, i) => {
    const { id, array, state, exitCode } = found[i];
    if (array?.id === id)
      throw usageError(`${host}:${job} has not begun; give the whole array, ${host}:${id}`);
    if (id === null) throw usageError(`${host}:${job} is not a job of \`submit\``);
    if (isLiving(state) || (host === ANY && (found[i] as Job).state === 'moving'))
      return [{ host, id, isOk }];
    const why = isOk ? whyNotOk({ state, exitCode }) : null;
    if (why !== null)
      throw usageError(`--after-ok ${host}:${job}: the job ${why}, so the new job would never start`);
    return [];
  });
}

/** Waits for the jobs of other machines that a job is to follow. @returns why it can't start; null: it can */
export const followJobs: JobHooks['followElsewhere'] = async (jobs, tell) => {
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

/** Waits for jobs that move. @returns as {@link followJobs}, of each */
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
      const hasLeft = ended?.state === 'lost' || ended?.moved === true;
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
