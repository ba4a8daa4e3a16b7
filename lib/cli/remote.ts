// `run` and `submit` on another machine.

import { resolve } from 'node:path';
import { EXIT_CODES } from '../errors.ts';
import {
  addressForOthers,
  cancelUntold,
  commandOnHost,
  createMoving,
  type Environment,
  environmentFor,
  firstQueue,
  type HostFailure,
  type HostRefusal,
  hostsToUse,
  hostsToWaitFor,
  type NewMovingJob,
  runOnHost,
  startWhereFree,
  submitMoving,
  submitOnHost,
  wantedOf,
} from '../fleet/index.ts';
import { formatArray, parseArray } from '../jobs/index.ts';
import { parseDuration, sanitize, shellWords, showValue, TIMEOUTS } from '../platform/index.ts';
import { waitOption } from './claim-values.ts';
import { optionsOf } from './command.ts';
import { type AnyValues, type Parsed, usage } from './command-line.ts';
import { COMMAND as FIND } from './find.ts';
import { HOSTS, toArguments } from './hosts.ts';
import { isTerminal, print, say, write } from './output.ts';
import type { RUN_GROUPS, SUBMIT_GROUPS } from './run-options.ts';

/** How long a host has to answer, in ms. */
const TIMEOUT_MS = 10_000;
/** The same where another host's queue will do for the moment, as the job may move later. */
const PATIENCE_MS = 3_000;
/** The exit code of a command whose output has no reader any more, as a shell has it. */
const SIGPIPE = 128 + 13;
/** Linux takes 128 KiB for one argument of a program, and base64 makes a third more of it. */
const MAX_WORDS_LENGTH = 90_000;

/** A command, for people. */
const MAX_SHOWN = 300;

type Hosts = ReturnType<typeof check>['hosts'];
type RunArguments = Parsed<typeof RUN_GROUPS>;

/** Runs a command on another machine, and ends this process as it ended there. @param parsed checked as for this machine */
export async function runOn(list: string, parsed: RunArguments): Promise<void> {
  const { hosts, isAny, directoryOn } = check(list, parsed);
  const { values } = parsed;
  const hasTerminal = isTerminal(0) && isTerminal(1);
  const environment = environmentFor(values.env ?? []);
  /** @param waits whether it joins the queue there */
  const startOn = async (host: Hosts[number], waits: boolean): Promise<HostRefusal | null> => {
    const kept = await keepThere(host, environment);
    if (typeof kept === 'object' && kept !== null) return { error: kept, isCertain: true };
    const end = await runOnHost(host, {
      words: wordsFor('run', parsed, !waits),
      ...{ directory: directoryOn(host), settings: kept, hasTerminal, isQuiet: !waits },
      grantTimeoutMs: waits ? null : TIMEOUTS.grant,
      onOutput: (bytes) => write(1, bytes, SIGPIPE),
      onErrors: (bytes) => write(2, bytes),
    });
    if (end.state === 'failed') return end;
    if (end.state === 'killed') endBy(end.signal);
    if (end.note !== null) say(`${host.name}: ${end.note}`);
    process.exitCode = end.exitCode;
    return null;
  };
  const waitSomewhere = async (possible: Hosts) => {
    const host = await firstQueue(
      possible,
      wantedOf(wordsFor('run', parsed, false), Number(values.gpus ?? 1)),
      TIMEOUT_MS,
    );
    say(`waits in the queue of ${host.name}`);
    return choose([host], false, values, (only) => startOn(only, true));
  };
  const wait = isAny && waitOption(values, true) !== null ? waitSomewhere : null;
  process.exit(await choose(hosts, isAny, values, (host) => startOn(host, !isAny), wait));
}

/** Has a host keep variables for the next command. @returns the path of the file; null: there are none. Otherwise why it doesn't */
async function keepThere(
  host: Hosts[number],
  environment: Environment,
): Promise<string | null | HostFailure> {
  if (environment.length === 0) return null;
  const words = ['keep-environment', ...environment.map(([name]) => name)];
  const answer = await commandOnHost(host, words, TIMEOUT_MS, environment);
  return answer.error ?? answer.output.trim();
}

/** Submits a job on another machine, prints its address, and ends this process. @param parsed checked as for this machine */
export async function submitOn(list: string, parsed: RunArguments): Promise<void> {
  process.exit(await submitTo(list, parsed)); // other hosts may still be asked
}

async function submitTo(list: string, given: RunArguments): Promise<number> {
  const interrupts = new Interrupts();
  const environment = environmentFor(given.values.env ?? []);
  const { hosts, isAny, directory, directories, directoryOn } = check(list, given);
  const wait = waitOption(given.values, true);
  const { after, values } =
    isAny && wait !== null
      ? await jobsToFollow(given.values)
      : { after: [], values: await withPlaces(given.values) };
  const parsed = { ...given, values };
  const parts = isAny ? partsOf(given.values) : null;
  const timeoutMs = isAny || wait === null ? TIMEOUTS.grant : TIMEOUT_MS;
  const start = async (host: Hosts[number]): Promise<HostRefusal | null> => {
    const words = wordsFor('submit', parsed, isAny, host.name);
    const answer = await interrupts.during(`${host.name} to answer`, () =>
      submitOnHost(host, words, directoryOn(host), timeoutMs, environment),
    );
    if (answer.error !== null) return answer;
    const address = `${host.name}:${answer.id}`;
    if (interrupts.signal.aborted) {
      const { error } = await commandOnHost(host, ['cancel', '--', String(answer.id)], TIMEOUT_MS);
      say(error === null ? `${address} is cancelled` : `${address} is submitted: ${error.message}`);
      interrupts.end();
    }
    print(address, () => say(`the job was submitted: gpu-owner cancel ${address}`));
    return null;
  };
  const waitSomewhere = async (possible: Hosts) => {
    const giveUp = giveUpAt(wait);
    const askedFor = (part: number | null): NewMovingJob => ({
      ...{ directory, directories, after, giveUpAt: giveUp },
      environment: part === null ? environment : [...environment, ['GPU_OWNER_ARRAY_ID', String(part)]],
      name: values.name ?? null,
      command: sanitize(shellWords(parsed.command), MAX_SHOWN),
      count: Number(values.gpus ?? 1),
      words: wordsFor('submit', part === null ? parsed : partOf(parsed, part), null).slice(1),
      asked: hosts.map(({ name }) => name),
      hosts: possible.map(({ name }) => name),
    });
    const [first = null, ...others] = parts ?? [];
    const job = await interrupts.during('a queue', () =>
      submitMoving(askedFor(first), say, interrupts.signal),
    );
    if (job === null) return interrupts.end();
    const { id, at, note } = job;
    if (at === null && after.length === 0) {
      say(note ?? 'no host can serve it');
      return EXIT_CODES.ERR_INVALID_ARGUMENT;
    }
    const ids = [id, ...others.map((part) => createMoving(askedFor(part)).id)];
    print(`any:${formatArray(ids, null)}`, () => {
      for (const each of ids) cancelUntold(each, say);
    });
    return 0;
  };
  if (after.length > 0 || parts !== null) return waitSomewhere(hosts);
  return choose(hosts, isAny, values, start, wait === null ? null : waitSomewhere, PATIENCE_MS);
}

/** The parts of an array that choose their hosts; null: it is none. @throws ERR_INVALID_ARGUMENT */
function partsOf(values: Parsed<typeof SUBMIT_GROUPS>['values']): readonly number[] | null {
  if (values.array === undefined) return null;
  const { ids, atOnce } = parseArray(values.array);
  if (atOnce === null && !values['like-slurm']) return ids;
  const option = atOnce === null ? '--like-slurm' : `%${atOnce}`;
  throw usage(`--array: ${option} needs one host, as each part chooses its own: use --on HOST`);
}

/** A part as a job of its own. */
function partOf(array: RunArguments, part: number): RunArguments {
  const { array: _, output, ...values }: Parsed<typeof SUBMIT_GROUPS>['values'] = array.values;
  const own = output?.replaceAll(/%%|%a/g, (each) => (each === '%a' ? String(part) : each));
  return { ...array, values: { ...values, ...(own === undefined ? {} : { output: own }) } };
}

/** Ctrl-C while a job is being submitted: it is taken back, as its user doesn't have its address. */
class Interrupts {
  readonly #abort = new AbortController();
  #waitsFor: string | null = null;
  #by: NodeJS.Signals = 'SIGINT';

  readonly #onSignal = (signal: NodeJS.Signals) => {
    this.release(); // the next one ends this process
    if (this.#waitsFor === null) endBy(signal);
    this.#by = signal;
    say(`waiting for ${this.#waitsFor}, to take the job back; once more ends this at once`);
    this.#abort.abort();
  };

  constructor() {
    process.on('SIGINT', this.#onSignal).on('SIGTERM', this.#onSignal);
  }

  release(): void {
    process.off('SIGINT', this.#onSignal).off('SIGTERM', this.#onSignal);
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Does what must not end halfway. @param what is waited for, in words */
  async during<T>(what: string, submit: () => Promise<T>): Promise<T> {
    this.#waitsFor = what;
    try {
      return await submit();
    } finally {
      this.#waitsFor = null;
    }
  }

  /** Ends this process as the signal would have. */
  end(): never {
    endBy(this.#by);
  }
}

/** The jobs that a new one is to follow before it joins a queue, and the other options. @throws ERR_INVALID_ARGUMENT */
async function jobsToFollow(given: RunArguments['values']) {
  const { after: _, 'after-ok': __, ...values }: Parsed<typeof SUBMIT_GROUPS>['values'] = given;
  const { jobOptions } = await import('./job-options.ts');
  const { after, afterOk, elsewhere, notBefore } = await jobOptions(given);
  if (notBefore !== undefined)
    throw usage(
      '--after TIME needs one host, as --on any starts a job as soon as a host can serve it: use --on HOST',
    );
  const [here] = [...after, ...afterOk];
  if (here === undefined) return { after: elsewhere, values };
  throw usage(
    `--after${after.length > 0 ? '' : '-ok'} ${showValue(here)}: with --on any, say on which host that job is: HOST:JOB, or any:JOB`,
  );
}

/** Options in which jobs that have moved have the address of their host, as other hosts know no other one. @throws ERR_INVALID_ARGUMENT */
async function withPlaces(values: RunArguments['values']): Promise<RunArguments['values']> {
  const changed: Record<string, string[]> = {};
  for (const name of ['after', 'after-ok']) {
    const lists = (values as AnyValues)[name];
    if (!Array.isArray(lists) || !lists.some((list) => /(?:^|,)\s*any:/.test(list))) continue;
    changed[name] = lists.map((list) =>
      list.replace(/(?<=^|,)\s*any:([^,]*)/g, (_, job) => addressForOthers(job)),
    );
  }
  return { ...values, ...changed };
}

/** @throws ERR_INVALID_ARGUMENT */
function giveUpAt(wait: ReturnType<typeof waitOption>): number | null {
  return wait?.maxWait == null ? null : Date.now() + parseDuration(wait.maxWait, '--wait');
}

/** @throws ERR_INVALID_ARGUMENT for what is wrong with the hosts, or can't be sent there */
function check(list: string, parsed: RunArguments) {
  const { values } = parsed;
  const { hosts: chosen, isOne } = hostsToUse(list);
  const hosts = chosen.map(({ host }) => host);
  const directory = resolve(values.chdir ?? '.');
  const directories = chosen.flatMap(({ host, directory: there }): [string, string][] =>
    there === null ? [] : [[host.name, there]],
  );
  const size = Buffer.byteLength(shellWords([directory, ...parsed.args])); // quoted: each ' takes four
  if (size > MAX_WORDS_LENGTH)
    throw usage(`--on: arguments of ${size} bytes are too many for ssh: pass long lists in a file`);
  const odd = [directory, ...parsed.args].find((word) => word.includes('\ufffd'));
  if (odd !== undefined) throw usage(`--on: ${showValue(odd)} is not UTF-8, and would get lost on the way`);
  const there = new Map(directories);
  const directoryOn = ({ name }: (typeof hosts)[number]) => there.get(name) ?? directory;
  return { hosts, isAny: !isOne, directory, directories, directoryOn };
}

/** Options that the host isn't given as they are. */
const OWN = ['on', 'env', 'chdir'];
const WAITING = ['wait', 'no-wait', 'max-wait'];

/**
 * The arguments there.
 * @param isNow it doesn't wait; null: that is for the mover to say
 * @param host has its own jobs without an address; null: not known
 */
function wordsFor(
  name: string,
  { values, command }: RunArguments,
  isNow: boolean | null,
  host: string | null = null,
): string[] {
  const isOwn = (option: string) =>
    OWN.includes(option) || (isNow === false ? option === 'no-wait' : WAITING.includes(option));
  const options = toArguments(values, (option) => !isOwn(option)).map((option) =>
    /^--after(?:-ok)?=/.test(option)
      ? option.replace(/[^=,\s]+:(?=[^:,]+(?:,|$))/g, (each) => (each === `${host}:` ? '' : each))
      : option,
  );
  const wait = isNow === true || (isNow === false && values['no-wait']) ? ['--no-wait'] : [];
  return [name, ...wait, ...options, '--', ...command];
}

/**
 * Starts on the host, or on the first that has enough free GPUs and gives them.
 * @param start returns why it doesn't run there; null: it did
 * @param wait has it wait on these hosts, where none has enough free GPUs now; returns the exit code. null: it doesn't wait
 * @param patienceMs how long silent hosts are waited for, where another one could serve it later
 */
async function choose(
  hosts: Hosts,
  isAny: boolean,
  values: AnyValues,
  start: (host: Hosts[number]) => Promise<HostRefusal | null>,
  wait: ((possible: Hosts) => Promise<number>) | null = null,
  patienceMs = TIMEOUT_MS,
): Promise<number> {
  const patience = {
    ms: patienceMs,
    onSlow: (names: readonly string[]) => say(`waiting for an answer of ${names.join(', ')}`),
  };
  const startOnly = async ([host]: [Hosts[number]]) => {
    const refusal = await start(host);
    return refusal && [{ host: host.name, ...refusal }];
  };
  const refusals = isAny
    ? await startWhereFree(hosts, criteriaOf(values), TIMEOUT_MS, patience, start)
    : await startOnly(hosts as [Hosts[number]]);
  const possible = wait === null || refusals === null || !isAny ? [] : hostsToWaitFor(hosts, refusals);
  if (wait !== null && refusals !== null && possible.length > 0) {
    for (const { host, error } of refusals)
      if (error.code === 'ERR_HOST_TIMEOUT') say(`${host} is left out for now: ${error.message}`);
      else if (!possible.some(({ name }) => name === host)) say(`${host} is left out: ${error.message}`);
    return wait(possible);
  }
  if (refusals === null) return Number(process.exitCode ?? 0);
  for (const { host, error } of refusals) say(`${host}: ${error.message}`);
  // If the error says that no GPU is free, the user tries again, and the command would run twice.
  const uncertain = refusals.filter(({ isCertain }) => !isCertain);
  const decisive = uncertain.length > 0 ? uncertain : refusals;
  return exitCodeOf(
    decisive.map(({ error }) => error.code),
    isAny,
  );
}

function exitCodeOf(codes: readonly string[], isAny: boolean): number {
  // A host on which nothing is free has answered, too.
  if (isAny && codes.includes('ERR_GPU_UNAVAILABLE')) return EXIT_CODES.ERR_GPU_UNAVAILABLE;
  const [code = ''] = codes;
  const own = Object.entries(EXIT_CODES).find(([each]) => each === code)?.[1];
  if (own !== undefined && codes.every((each) => each === code)) return own;
  return code === 'ERR_HOST_DIRECTORY' ? EXIT_CODES.ERR_INVALID_ARGUMENT : EXIT_CODES.ERR_NO_DRIVER;
}

/** The options of a claim that `find` takes, too. The host is to say what is free now, so it doesn't wait. */
function criteriaOf(values: AnyValues): string[] {
  const known = 'groups' in FIND ? optionsOf(FIND.groups) : {};
  const own = ['json', ...WAITING, ...Object.keys(HOSTS)];
  return toArguments(values, (name) => Object.hasOwn(known, name) && !own.includes(name));
}

/** Ends as ssh was ended. */
function endBy(signal: NodeJS.Signals): never {
  process.kill(process.pid, signal);
  process.exit(EXIT_CODES.ERR_ABORTED); // where it has a handler
}
