// The first of several hosts on which enough GPUs are free, or are expected to be.
import type { Host } from '../config/index.ts';
import { formatDuration, TIMEOUTS } from '../platform/index.ts';
import { byExpectedWait, type Wanted } from './expected-wait.ts';
import { askHosts, type HostAnswer } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';
import { MovingJobs } from './moving-job.ts';
import { Connections } from './ssh.ts';

/** Why a command doesn't run on a host. `isCertain`: it doesn't; otherwise it may run. */
export interface HostRefusal {
  error: HostFailure;
  isCertain: boolean;
}

type RefusalOfHost = HostRefusal & { host: string };

/**
 * Asks all hosts for free GPUs, and starts a command on the first that has enough of them and gives them.
 * @param criteria options of `gpu-owner find`
 * @param timeoutMs how long a host has to answer
 * @param patience how long hosts are waited for that say nothing, once another one has said that its GPUs are taken, in ms; `onSlow`
 * is called with their names after two seconds
 * @param start returns why it doesn't run there; null: it did
 * @returns the refusals, in the order of the answers: the last alone can be uncertain, as no other host is tried after it. null: it ran.
 * Other hosts may still be asked then
 */
export async function startWhereFree(
  hosts: readonly Host[],
  criteria: readonly string[],
  timeoutMs: number,
  patience: { ms: number; onSlow: (names: readonly string[]) => void },
  start: (host: Host) => Promise<HostRefusal | null>,
): Promise<RefusalOfHost[] | null> {
  const refusals: RefusalOfHost[] = [];
  const isBusy = () => refusals.some(({ error }) => error.code === 'ERR_GPU_UNAVAILABLE');
  for await (const { host, error } of answersAsTheyCome(hosts, criteria, timeoutMs, patience, isBusy)) {
    const refusal =
      error === null
        ? await start(hosts.find(({ name }) => name === host) as Host)
        : { error, isCertain: true };
    if (refusal === null) return null;
    refusals.push({ host, ...refusal });
    if (!refusal.isCertain) break;
  }
  return refusals;
}

/** The host in whose queue a request is expected to start first; the first one if none says how busy it is. */
export async function firstQueue(hosts: readonly Host[], wanted: Wanted, timeoutMs: number): Promise<Host> {
  const answers = await askHosts(
    hosts.map(shared),
    'machines',
    ['top', '--json', '--no-jobs'],
    timeoutMs,
    () => {},
  );
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
  timeoutMs: number,
  { ms, onSlow }: { ms: number; onSlow: (names: readonly string[]) => void },
  isBusy: () => boolean,
): AsyncGenerator<HostAnswer<'gpus'>> {
  const answers: HostAnswer<'gpus'>[] = [];
  const silent = new Set(hosts.map(({ name }) => name));
  let wake = () => {};
  let isLate = false;
  void askHosts(hosts.map(shared), 'gpus', ['find', '--json', ...criteria], timeoutMs, (answer) => {
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
  }, ms);
  try {
    for (let remaining = hosts.length; remaining > 0; remaining--) {
      while (answers.length === 0) {
        if (isSlow) onSlow([...silent]);
        isSlow = false;
        if (isLate && isBusy()) {
          const message = `no answer within ${formatDuration(ms)}`;
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
export function hostsToWaitFor(hosts: readonly Host[], refusals: readonly RefusalOfHost[]): Host[] {
  const refusalOf = (name: string) => refusals.find(({ host }) => host === name);
  const isBusy = ({ name }: Host) => refusalOf(name)?.error.code === 'ERR_GPU_UNAVAILABLE';
  if (refusals.some(({ isCertain }) => !isCertain) || !hosts.some(isBusy)) return [];
  const passing = new Set(['ERR_GPU_UNAVAILABLE', 'ERR_HOST_UNREACHABLE', 'ERR_HOST_TIMEOUT']);
  return hosts.filter(({ name }) => passing.has(refusalOf(name)?.error.code ?? ''));
}
