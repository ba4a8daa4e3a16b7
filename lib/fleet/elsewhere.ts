// `run` and `submit` on other machines.
import type { Host } from '../config/index.ts';
import { EXIT_CODES } from '../errors.ts';
import { formatArray } from '../jobs/index.ts';
import { invalidArgument, shellWords, showValue, TIMEOUTS } from '../platform/index.ts';
import { cancelUntold, createMoving, type NewMovingJob, type Say, submitMoving } from './any-jobs.ts';
import { wantedOf } from './expected-wait.ts';
import { commandOnHost, hostsToUse, submitOnHost } from './fleet.ts';
import { firstQueue, type HostRefusal, type Placement, place } from './placement.ts';
import { runOnHost } from './remote-command.ts';
import { environmentFor } from './request.ts';

/** How long a host has to answer, in ms. */
const TIMEOUT_MS = 10_000;
/** The same where another host's queue will do for the moment, as the job may move later. */
const PATIENCE_MS = 3_000;
/** Linux takes 128 KiB for one argument of a program, and base64 makes a third more of it. */
const MAX_WORDS_LENGTH = 90_000;

/** A command with its request for GPUs. */
export interface CommandElsewhere {
  hosts: readonly Host[];
  /** Whether it goes to the first host with enough free GPUs. */
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
    throw invalidArgument(`--on: arguments of ${size} bytes are too many for ssh: pass long lists in a file`);
  const odd = all.find((word) => word.includes('\ufffd'));
  if (odd !== undefined)
    throw invalidArgument(`--on: ${showValue(odd)} is not UTF-8, and would get lost on the way`);
  const directories = chosen.flatMap(({ host, directory: there }): [string, string][] =>
    there === null ? [] : [[host.name, there]],
  );
  const hosts = chosen.map(({ host }) => host);
  return { hosts, isAny: !isOne, directory, directories, environment: environmentFor(env) };
}

function directoryOn({ directories, directory }: CommandElsewhere, { name }: Host): string {
  return new Map(directories).get(name) ?? directory;
}

/**
 * Runs a command.
 * @param words the arguments of gpu-owner, which waits for GPUs or doesn't
 * @param write prints output, to descriptor 1 or 2
 * @returns its exit code. This process ends as ssh does where a signal ends that
 */
export async function runElsewhere(
  command: CommandElsewhere,
  words: (waits: boolean) => readonly string[],
  hasTerminal: boolean,
  write: (descriptor: number, bytes: Uint8Array) => void,
): Promise<number> {
  const { isAny, environment, say } = command;
  const startOn = async (host: Host, waits: boolean): Promise<HostRefusal | number> => {
    const names = environment.map(([name]) => name);
    const kept =
      names.length === 0
        ? null
        : await commandOnHost(host, ['keep-environment', ...names], TIMEOUT_MS, environment);
    if (kept !== null && kept.error !== null) return { error: kept.error, isCertain: true };
    const end = await runOnHost(host, {
      ...{ words: words(waits), directory: directoryOn(command, host), hasTerminal, isQuiet: !waits },
      settings: kept?.output.trim() ?? null,
      grantTimeoutMs: waits ? null : TIMEOUTS.grant,
      onOutput: (bytes) => write(1, bytes),
      onErrors: (bytes) => write(2, bytes),
    });
    if (end.state === 'failed') return end;
    if (end.state === 'killed') endBy(end.signal);
    if (end.note !== null) say(`${host.name}: ${end.note}`);
    return end.exitCode;
  };
  const placement = { ...command, start: (host: Host) => startOn(host, !isAny), wait: null };
  const waitSomewhere = async (possible: readonly Host[]) => {
    const host = await firstQueue(possible, wantedOf(words(true), command.count));
    say(`waits in the queue of ${host.name}`);
    return place({ ...placement, hosts: [host], isAny: false, start: (only) => startOn(only, true) });
  };
  return place({ ...placement, wait: command.wait === null ? null : waitSomewhere });
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

/** Submits a job, or an array as jobs of their own. @param print tells its address, or calls the function @returns the exit code */
export async function submitElsewhere(
  job: Submission,
  print: (address: string, ifLost: () => void) => void,
): Promise<number> {
  const { hosts, isAny, environment, directory, directories, after, say } = job;
  const timeoutMs = isAny || job.wait === null ? TIMEOUTS.grant : TIMEOUT_MS;
  const start = async (host: Host): Promise<HostRefusal | number> => {
    const { result: answer, by } = await submitted(`${host.name} to answer`, say, () =>
      submitOnHost(host, job.words(host.name), directoryOn(job, host), timeoutMs, environment),
    );
    if (answer.error !== null) {
      if (by === null) return answer;
      say(`${host.name}: ${answer.error.message}`);
      endBy(by);
    }
    const address = `${host.name}:${answer.id}`;
    if (by !== null) {
      const { error } = await commandOnHost(host, ['cancel', '--', String(answer.id)], TIMEOUT_MS);
      say(error === null ? `${address} is cancelled` : `${address} is submitted: ${error.message}`);
      endBy(by);
    }
    print(address, () => say(`the job was submitted: gpu-owner cancel ${address}`));
    return 0;
  };
  const waitSomewhere = async (possible: readonly Host[]) => {
    const giveUpAt = job.wait?.ms == null ? null : Date.now() + job.wait.ms;
    const [first, ...others] = job.moving.map(
      ({ part, words }): NewMovingJob => ({
        ...{
          directory,
          directories,
          after,
          giveUpAt,
          words,
          name: job.name,
          command: job.shown,
          count: job.count,
        },
        environment: part === null ? environment : [...environment, ['GPU_OWNER_ARRAY_ID', String(part)]],
        asked: hosts.map(({ name }) => name),
        hosts: possible.map(({ name }) => name),
      }),
    );
    const { result: queued, by } = await submitted('a queue', say, (signal) =>
      submitMoving(first as NewMovingJob, say, signal),
    );
    if (queued === null) endBy(by ?? 'SIGINT');
    const { id, at, note } = queued;
    if (at === null && after.length === 0) {
      say(note ?? 'no host can serve it');
      return EXIT_CODES.ERR_INVALID_ARGUMENT;
    }
    const ids = [id, ...others.map((part) => createMoving(part).id)];
    print(`any:${formatArray(ids, null)}`, () => {
      for (const each of ids) cancelUntold(each, say);
    });
    return 0;
  };
  if (after.length > 0 || job.moving.some(({ part }) => part !== null)) return waitSomewhere(hosts);
  const placement: Placement = { ...job, start, wait: null, patienceMs: PATIENCE_MS };
  return place({ ...placement, wait: job.wait === null ? null : waitSomewhere });
}

/** Submits a job. Ctrl-C meanwhile takes it back, as its user doesn't have its address. @param waitsFor in words @returns `by`: that signal */
async function submitted<T>(
  waitsFor: string,
  say: Say,
  submit: (signal: AbortSignal) => Promise<T>,
): Promise<{ result: T; by: NodeJS.Signals | null }> {
  const abort = new AbortController();
  let by: NodeJS.Signals | null = null;
  const release = () => process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  const onSignal = (signal: NodeJS.Signals) => {
    by = signal;
    release(); // the next one ends this process
    say(`waiting for ${waitsFor}, to take the job back; once more ends this at once`);
    abort.abort();
  };
  process.on('SIGINT', onSignal).on('SIGTERM', onSignal);
  const result = await submit(abort.signal).finally(release);
  return { result, by };
}

/** Ends this process as the signal would have. */
function endBy(signal: NodeJS.Signals): never {
  process.kill(process.pid, signal);
  process.exit(EXIT_CODES.ERR_ABORTED); // where it has a handler
}
