// `resubmit --on`: ended jobs once more, on other machines.
import {
  ANY,
  environmentFor,
  type JobAddress,
  jobsElsewhere,
  livingElsewhere,
  movingJob,
  type SentJob,
  sentJob,
} from '../fleet/index.ts';
import { askedOf, FAILED, isLiving, JobStore, jobAt, LOST, resolveNames } from '../jobs/index.ts';
import { optionsOf } from './command.ts';
import { type Parsed, usage } from './command-line.ts';
import { addressOf, jobWords } from './job-address.ts';
import { say } from './output.ts';
import { parse } from './parser.ts';
import { submitTo } from './remote.ts';
import { checkRun, SUBMIT_GROUPS } from './run-request.ts';

/** A job as it was asked for. */
interface Asked extends SentJob {
  /** Jobs of other machines that it followed. */
  after: (JobAddress & { isOk: boolean })[];
  /** The variables that it had, of which some may go with it. */
  variables: Record<string, string>;
  /** The parts of an array that are meant; undefined: as it was. */
  array?: string;
}

type Submitted = Parsed<typeof SUBMIT_GROUPS>;
const parseSubmit = (words: string[]) =>
  parse(words, optionsOf(SUBMIT_GROUPS), 'word') as unknown as Submitted;

/** Submits jobs once more to a list of hosts, prints their addresses, and ends this process. */
export async function resubmitOn(list: string, jobs: readonly string[], env: readonly string[]) {
  if (jobs.some((word) => word === LOST || word === FAILED))
    throw usage(
      `--on: give the numbers of the jobs: which of those were submitted elsewhere isn't known here`,
    );
  for (const word of jobWords(jobs)) {
    const address = addressOf(word);
    const asked = address === null ? ownJob(word) : await jobOf(address, list);
    const { words, directory, environment, variables } = asked;
    const parsed = parseSubmit(words);
    const living = await livingElsewhere(asked.after, say);
    const after = (isOk: boolean) => {
      const all = living.filter((each) => each.isOk === isOk).map(({ host, id }) => `${host}:${id}`);
      return all.length === 0 ? {} : { [isOk ? 'after-ok' : 'after']: all };
    };
    const { after: _, 'after-ok': __, move, 'as-job': asJob, ...kept } = parsed.values;
    const array = asked.array === undefined ? {} : { array: asked.array };
    const values = { ...kept, ...after(true), ...after(false), ...array, on: list, chdir: directory };
    const again = { ...parsed, values };
    const more = environmentFor(env, variables);
    checkRun(again, 'submit');
    const code = await submitTo(list, again, [...environment, ...more]);
    if (code !== 0) process.exit(code);
  }
  process.exit(); // other hosts may still be asked
}

/** A job of this machine. @throws ERR_INVALID_ARGUMENT */
function ownJob(word: string): Asked {
  const store = JobStore.open();
  const [named = 0] = resolveNames(store, [word]);
  const [id, part] = typeof named === 'number' ? [named, null] : [named.id, named];
  const { request, files } = askedOf(store, id);
  if (request.start.join() !== 'submit') throw usage(`job ${id} is a sweep; run it there with exp run`);
  refuseLiving(store, id, request.after);
  const textsOf = (bytes: Uint8Array) => Buffer.from(bytes).toString().split('\0').slice(0, -1);
  const variables = textsOf(files.environment).flatMap((text): [string, string][] => {
    const equals = text.indexOf('=');
    return equals < 1 ? [] : [[text.slice(0, equals), text.slice(equals + 1)]];
  });
  return {
    words: textsOf(files.arguments),
    directory: request.directory,
    environment: [],
    after: (request.elsewhere ?? []).map(({ host, id: job, isOk }) => ({ host, job: String(job), isOk })),
    variables: Object.fromEntries(variables),
    ...(part === null ? {} : { array: String(part.index) }),
  };
}

/** Another machine can't follow jobs of this one. @throws ERR_INVALID_ARGUMENT */
function refuseLiving(store: JobStore, id: number, after: readonly { id: number; isOk: boolean }[]): void {
  for (const { id: before, isOk } of after) {
    if (store.read(before) === null) continue;
    const { state } = jobAt(store, before);
    if (isLiving(state))
      throw usage(`job ${id} follows job ${before}, which has not ended: ${state}; wait for that first`);
    if (isOk && state !== 'completed')
      throw usage(`job ${id} was to follow job ${before} if that ends well, but it is ${state}`);
  }
}

/** A job of another machine, as it was submitted to it from here. @throws ERR_INVALID_ARGUMENT, CommandEnd if its host doesn't answer */
async function jobOf(address: JobAddress, list: string): Promise<Asked> {
  const { host } = address;
  const [found] = await jobsElsewhere([address], say);
  const { array: part, state } = found;
  const id = /^\d+$/.test(address.job) ? Number(address.job) : (part?.id ?? found.id);
  const word = part === null ? id : address.job;
  if (['moving', 'waiting', 'running'].includes(state))
    throw usage(`${host}:${word} has not ended: ${state}; cancel it first`);
  const sent = host === ANY ? movingJob(address.job) : sentJob(host, id);
  if (sent === null)
    throw usage(
      `${host}:${word} was not submitted from here, and what ${host} says of it is not run elsewhere. Submit it there: ssh ${host} gpu-owner resubmit --on ${list} ${word}`,
    );
  const { after = [], 'after-ok': afterOk = [] } = parseSubmit(sent.words).values;
  const followed = (lists: string[], isOk: boolean) =>
    lists
      .flatMap((each) => each.split(','))
      .map((each) => ({ ...(addressOf(each.trim()) ?? { host, job: each.trim() }), isOk }));
  const { words, directory, environment } = sent;
  return {
    ...{ words, directory, environment, variables: Object.fromEntries(environment) },
    after: [...followed(after, false), ...followed(afterOk, true)],
    ...(part === null ? {} : { array: String(part.index) }),
  };
}
