// The first of several hosts on which enough GPUs are free, or are expected to be.
import type { Host } from '../config/index.ts';
import { EXIT_CODES } from '../errors.ts';
import { formatDuration, TIMEOUTS } from '../platform/index.ts';
import type { Say } from './any-jobs.ts';
import { byExpectedWait, type Wanted } from './expected-wait.ts';
import { askHosts, type HostAnswer } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';
import { MovingJobs } from './moving-job.ts';
import { Connections } from './ssh.ts';

/** How long a host has to answer, in ms. */
const TIMEOUT_MS = 10_000;

/** Why a command doesn't run on a host. `isCertain`: it doesn't; otherwise it may run. */
export interface HostRefusal {
  error: HostFailure;
  isCertain: boolean;
}

type RefusalOfHost = HostRefusal & { host: string };

/** How a host is found for a command. */
export interface Placement {
  hosts: readonly Host[];
  /** Whether the first host with enough free GPUs is wanted, and not the one. */
  isAny: boolean;
  /** Options of `gpu-owner find`, which are asked of several hosts. */
  criteria: readonly string[];
  /** Starts it on a host. @returns its exit code, or why it doesn't run there */
  start: (host: Host) => Promise<HostRefusal | number>;
  /** Has it wait on these hosts, where none has enough free GPUs now. @returns the exit code. null: it doesn't wait */
  wait: ((possible: readonly Host[]) => Promise<number>) | null;
  /** How long silent hosts are waited for once another one could serve it later, in ms. */
  patienceMs?: number;
  say: Say;
}

/**
 * Starts a command on the host, or on the first of several that has enough free GPUs and gives them, or has it wait. Says why it runs
 * nowhere. Other hosts may still be asked then.
 * @returns the exit code
 */
export async function place({ hosts, isAny, wait, say, ...how }: Placement): Promise<number> {
  const refusals: RefusalOfHost[] = [];
  const isBusy = () => refusals.some(({ error }) => error.code === 'ERR_GPU_UNAVAILABLE');
  const answers = isAny
    ? answersAsTheyCome(hosts, how.criteria, how.patienceMs ?? TIMEOUT_MS, say, isBusy)
    : hosts.map(({ name }) => ({ host: name, error: null }));
  for await (const { host, error } of answers) {
    const refusal =
      error === null
        ? await how.start(hosts.find(({ name }) => name === host) as Host)
        : { error, isCertain: true };
    if (typeof refusal === 'number') return refusal;
    refusals.push({ host, ...refusal });
    if (!refusal.isCertain) break; // a second host would run it twice
  }
  const possible = wait === null || !isAny ? [] : hostsToWaitFor(hosts, refusals);
  if (wait !== null && possible.length > 0) {
    for (const { host, error } of refusals)
      if (error.code === 'ERR_HOST_TIMEOUT') say(`${host} is left out for now: ${error.message}`);
      else if (!possible.some(({ name }) => name === host)) say(`${host} is left out: ${error.message}`);
    return wait(possible);
  }
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

/** The host in whose queue a request is expected to start first; the first one if none says how busy it is. */
export async function firstQueue(hosts: readonly Host[], wanted: Wanted): Promise<Host> {
  const words = ['top', '--json', '--no-jobs'];
  const answers = await askHosts(hosts.map(shared), 'machines', words, TIMEOUT_MS, () => {});
  const known = hosts.flatMap((host, i) => {
    const snapshot = answers[i]?.records?.[0];
    return snapshot === undefined ? [] : [{ host, snapshot }];
  });
  return byExpectedWait(known, wanted)[0] ?? (hosts[0] as Host);
}

/** A host over the mover's connection, if there is one: a hundred submissions need no hundred logins to learn that all is taken. */
function shared(host: Host): Host {
  return new Connections(new MovingJobs().path).to(host, true);
}

async function* answersAsTheyCome(
  hosts: readonly Host[],
  criteria: readonly string[],
  patienceMs: number,
  say: Say,
  isBusy: () => boolean,
): AsyncGenerator<HostAnswer<'gpus'>> {
  const answers: HostAnswer<'gpus'>[] = [];
  const silent = new Set(hosts.map(({ name }) => name));
  let wake = () => {};
  let isLate = false;
  void askHosts(hosts.map(shared), 'gpus', ['find', '--json', ...criteria], TIMEOUT_MS, (answer) => {
    if (silent.delete(answer.host)) answers.push(answer);
    wake();
  });
  let isSlow = false;
  const slow = setTimeout(() => {
    isSlow = true;
    wake();
  }, TIMEOUTS.slowHost);
  const late = setTimeout(() => {
    isLate = true;
    wake();
  }, patienceMs);
  try {
    for (let remaining = hosts.length; remaining > 0; remaining--) {
      while (answers.length === 0) {
        if (isSlow) say(`waiting for an answer of ${[...silent].join(', ')}`);
        isSlow = false;
        if (isLate && isBusy()) {
          const message = `no answer within ${formatDuration(patienceMs)}`;
          for (const host of silent)
            answers.push({
              host,
              version: null,
              records: null,
              error: { code: 'ERR_HOST_TIMEOUT', message },
            });
          silent.clear();
        } else await new Promise<void>((resolve) => (wake = resolve));
      }
      yield answers.shift() as HostAnswer<'gpus'>;
    }
  } finally {
    clearTimeout(slow);
    clearTimeout(late);
  }
}

/** Hosts that may serve it later; none if there is no such host that has answered, or it may run already. */
function hostsToWaitFor(hosts: readonly Host[], refusals: readonly RefusalOfHost[]): Host[] {
  const refusalOf = (name: string) => refusals.find(({ host }) => host === name);
  const isBusy = ({ name }: Host) => refusalOf(name)?.error.code === 'ERR_GPU_UNAVAILABLE';
  if (refusals.some(({ isCertain }) => !isCertain) || !hosts.some(isBusy)) return [];
  const passing = new Set(['ERR_GPU_UNAVAILABLE', 'ERR_HOST_UNREACHABLE', 'ERR_HOST_TIMEOUT']);
  return hosts.filter(({ name }) => passing.has(refusalOf(name)?.error.code ?? ''));
}
