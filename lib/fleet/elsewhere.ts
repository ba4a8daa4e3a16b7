// `run` and `submit` on other machines.
import type { Host } from '../config/index.ts';
import { EXIT_CODES } from '../errors.ts';
import { formatArray } from '../jobs/index.ts';
import { shellWords, showValue, usageError } from '../platform/index.ts';
import { createMoving, type NewMovingJob, type Say, untilQueued } from './any-jobs.ts';
import { wantedOf } from './expected-wait.ts';
import { noSSH } from './failures.ts';
import { hostsToUse, keepOnHost, submitOnHost } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';
import { MovingJobs } from './moving-job.ts';
import { chooseHost, exitCodeOf } from './placement.ts';
import { runOnHost } from './remote-run.ts';
import { environmentFor } from './request.ts';

/** How long a host has to answer, in ms. */
const TIMEOUT_MS = 10_000;
/** The same for GPUs that a job gets at once, in ms: a driver that hangs takes a while. */
const GRANT_TIMEOUT_MS = 30_000;
/** Linux takes 128 KiB for one argument of a program, and base64 makes a third more of it. */
const MAX_WORDS_LENGTH = 90_000;

/** A command with its request for GPUs. */
export interface CommandElsewhere {
  hosts: readonly Host[];
  /** Whether one of the hosts is to be chosen. */
  isAny: boolean;
  /** An absolute path. */
  directory: string;
  /** Hosts with another directory. */
  directories: readonly [host: string, directory: string][];
  environment: MovingEnvironment;
  /** How many GPUs it asks for. */
  count: number;
  /** Options of `gpu-owner find`. */
  criteria: readonly string[];
  /** How long it waits for GPUs, in ms, null: for ever; without it, not at all. */
  wait: { ms: number | null } | null;
  say: Say;
}
type MovingEnvironment = NewMovingJob['environment'];

/**
 * Where a command is to run, by the value of --on.
 * @param args all that hosts are sent
 * @throws ERR_INVALID_ARGUMENT for what is wrong with the hosts, or can't be sent there
 */
export function commandFor(on: string, directory: string, args: readonly string[], env: readonly string[]) {
  const { hosts: chosen, isOne } = hostsToUse(on);
  const all = [directory, ...args];
  const size = Buffer.byteLength(shellWords(all)); // quoted: each ' takes four
  if (size > MAX_WORDS_LENGTH)
    throw usageError(`--on: arguments of ${size} bytes are too many for ssh: pass long lists in a file`);
  const odd = all.find((word) => word.includes('\ufffd'));
  if (odd !== undefined)
    throw usageError(`--on: ${showValue(odd)} is not UTF-8, and would get lost on the way`);
  const directories = chosen.flatMap(({ host, directory: there }): [string, string][] =>
    there === null ? [] : [[host.name, there]],
  );
  const hosts = chosen.map(({ host }) => host);
  return { hosts, isAny: !isOne, directory, directories, environment: environmentFor(env) };
}

function directoryOn({ directories, directory }: CommandElsewhere, { name }: Host): string {
  return new Map(directories).get(name) ?? directory;
}

/** The host for a command. @returns an exit code if there is none */
function hostFor(command: CommandElsewhere, words: readonly string[]): Host | Promise<Host | number> {
  const { hosts, isAny, wait, count } = command;
  if (!isAny) return hosts[0] as Host;
  return chooseHost({ ...command, wanted: wait === null ? null : wantedOf(words, count) });
}

function sayRefusal(host: Host, { code, message }: HostFailure, say: Say): number {
  say(`${host.name}: ${message}`);
  return exitCodeOf([code]);
}

/**
 * Runs a command.
 * @param words the arguments of gpu-owner
 * @returns its exit code. This process ends as ssh does where a signal ends that
 */
export async function runElsewhere(
  command: CommandElsewhere,
  words: readonly string[],
  hasTerminal: boolean,
): Promise<number> {
  const { environment, say } = command;
  const host = await hostFor(command, words);
  if (typeof host === 'number') return host;
  const kept = environment.length === 0 ? null : await keepOnHost(host, environment, TIMEOUT_MS);
  if (kept !== null && kept.error !== null) return sayRefusal(host, kept.error, say);
  const directory = directoryOn(command, host);
  const end = await runOnHost(host, { words, directory, settings: kept?.path ?? null, hasTerminal });
  if (end === null) return sayRefusal(host, noSSH(), say);
  return typeof end === 'number' ? end : endBy(end);
}

/** A job for other machines. */
export interface Submission extends CommandElsewhere, Pick<NewMovingJob, 'after' | 'name'> {
  /** Its command, for people. */
  shown: string;
  /** The arguments of gpu-owner on one host. */
  words: (host: string) => readonly string[];
  /** The same on any host, of the job or of each part of an array. */
  moving: readonly { part: number | null; words: string[] }[];
}

/** Submits a job; one that waits for any host, or each part of such an array, then moves. @param print tells its address @returns the exit code */
export async function submitElsewhere(job: Submission, print: (address: string) => void): Promise<number> {
  const { wait, environment, say } = job;
  if (job.isAny && wait !== null) return submitToMove(job, wait, print);
  const host = await hostFor(job, []);
  if (typeof host === 'number') return host;
  const timeoutMs = wait === null ? GRANT_TIMEOUT_MS : TIMEOUT_MS;
  const answer = await submitOnHost(
    host,
    job.words(host.name),
    directoryOn(job, host),
    timeoutMs,
    environment,
  );
  if (answer.error !== null) return sayRefusal(host, answer.error, say);
  print(`${host.name}:${answer.id}`);
  return 0;
}

async function submitToMove(
  job: Submission,
  wait: { ms: number | null },
  print: (address: string) => void,
): Promise<number> {
  const { after, directory, directories, environment, name, count, say } = job;
  const giveUpAt = wait.ms === null ? null : Date.now() + wait.ms;
  const hosts = job.hosts.map((host) => host.name);
  const [first, ...others] = job.moving.map(
    ({ part, words }): NewMovingJob => ({
      ...{ directory, directories, after, giveUpAt, words, name, count, hosts, command: job.shown },
      environment: part === null ? environment : [...environment, ['GPU_OWNER_ARRAY_ID', String(part)]],
    }),
  );
  const { id } = createMoving(first as NewMovingJob);
  const takeBack = (signal: NodeJS.Signals) => {
    say(`any:${id} is cancelled`);
    new MovingJobs().cancel(id);
    endBy(signal);
  };
  process.once('SIGINT', takeBack).once('SIGTERM', takeBack);
  const { at, note } = await untilQueued(id, say);
  process.off('SIGINT', takeBack).off('SIGTERM', takeBack);
  if (at === null && after.length === 0) {
    say(note ?? 'no host can serve it');
    return EXIT_CODES.ERR_INVALID_ARGUMENT;
  }
  print(`any:${formatArray([id, ...others.map((part) => createMoving(part).id)], null)}`);
  return 0;
}

/** Ends this process as the signal would have. */
function endBy(signal: NodeJS.Signals): never {
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
  process.exit(EXIT_CODES.ERR_ABORTED); // where it is ignored
}
