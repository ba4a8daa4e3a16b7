// The first of several hosts on which enough GPUs are free, or are expected to be.
import type { Host } from '../config/index.ts';
import { byExpectedWait } from './expected-wait.ts';
import { askHosts, type HostAnswer } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';

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
 * @param start returns why it doesn't run there; null: it did
 * @returns the refusals, in the order of the answers: the last alone can be uncertain, as no other host is tried after it. null: it ran.
 * Other hosts may still be asked then
 */
export async function startWhereFree(
  hosts: readonly Host[],
  criteria: readonly string[],
  timeoutMs: number,
  start: (host: Host) => Promise<HostRefusal | null>,
): Promise<RefusalOfHost[] | null> {
  const refusals: RefusalOfHost[] = [];
  for await (const { host, error } of answersAsTheyCome(hosts, criteria, timeoutMs)) {
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
export async function firstQueue(hosts: readonly Host[], count: number, timeoutMs: number): Promise<Host> {
  const answers = await askHosts(hosts, 'machines', ['top', '--json', '--no-jobs'], timeoutMs, () => {});
  const known = hosts.flatMap((host, i) => {
    const snapshot = answers[i]?.records?.[0];
    return snapshot === undefined ? [] : [{ host, snapshot }];
  });
  return byExpectedWait(known, count)[0] ?? (hosts[0] as Host);
}

async function* answersAsTheyCome(
  hosts: readonly Host[],
  criteria: readonly string[],
  timeoutMs: number,
): AsyncGenerator<HostAnswer<'gpus'>> {
  const answers: HostAnswer<'gpus'>[] = [];
  let onAnswer = () => {};
  void askHosts(hosts, 'gpus', ['find', '--json', ...criteria], timeoutMs, (answer) => {
    answers.push(answer);
    onAnswer();
  });
  for (let left = hosts.length; left > 0; left--) {
    if (answers.length === 0) await new Promise<void>((resolve) => (onAnswer = resolve));
    yield answers.shift() as HostAnswer<'gpus'>;
  }
}
