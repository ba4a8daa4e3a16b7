// The host for a command: the first of several that has enough free GPUs, or is expected to have them first.
import type { Host } from '../config/index.ts';
import { EXIT_CODES } from '../errors.ts';
import { TIMEOUTS } from '../platform/index.ts';
import type { Say } from './any-jobs.ts';
import { byExpectedWait, type Wanted } from './expected-wait.ts';
import { askHosts } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';

/** How long a host has to answer, in ms. */
const TIMEOUT_MS = 10_000;

interface Search {
  hosts: readonly Host[];
  /** Options of `gpu-owner find`, which is asked of all. */
  criteria: readonly string[];
  /** The request, if it may wait; null: it may not. */
  wanted: Wanted | null;
  say: Say;
}

/**
 * Finds the first host that has enough free GPUs; without one, the host in whose queue a request is expected to start first. Other hosts
 * may still be asked then.
 * @returns the exit code where there is none, and all reasons are said
 */
export async function chooseHost({ hosts, criteria, wanted, say }: Search): Promise<Host | number> {
  const silent = new Set(hosts.map(({ name }) => name));
  const slow = setTimeout(() => say(`waiting for an answer of ${[...silent].join(', ')}`), TIMEOUTS.slowHost);
  const refusals = new Map<string, HostFailure>();
  const free = await new Promise<string | null>((resolve) => {
    const words = ['find', '--json', ...criteria];
    const all = askHosts(hosts, 'gpus', words, TIMEOUT_MS, ({ host, error }) => {
      silent.delete(host);
      if (error === null) resolve(host);
      else refusals.set(host, error);
    });
    void all.then(() => resolve(null));
  });
  clearTimeout(slow);
  const found = hosts.find(({ name }) => name === free);
  if (found !== undefined) return found;
  const busy = hosts.filter(({ name }) => refusals.get(name)?.code === 'ERR_GPU_UNAVAILABLE');
  const isWaiting = wanted !== null && busy.length > 0;
  for (const [host, { code, message }] of refusals)
    if (!isWaiting) say(`${host}: ${message}`);
    else if (code !== 'ERR_GPU_UNAVAILABLE') say(`${host} is left out: ${message}`);
  if (!isWaiting) return exitCodeOf([...refusals.values()].map(({ code }) => code));
  const host = await firstQueue(busy, wanted);
  say(`waits in the queue of ${host.name}`);
  return host;
}

/** The exit code for the errors of hosts. */
export function exitCodeOf(codes: readonly string[]): number {
  // A host on which nothing is free has answered, too.
  if (codes.includes('ERR_GPU_UNAVAILABLE')) return EXIT_CODES.ERR_GPU_UNAVAILABLE;
  const [code = ''] = codes;
  const own = Object.entries(EXIT_CODES).find(([each]) => each === code)?.[1];
  if (own !== undefined && codes.every((each) => each === code)) return own;
  return code === 'ERR_HOST_DIRECTORY' ? EXIT_CODES.ERR_INVALID_ARGUMENT : EXIT_CODES.ERR_NO_DRIVER;
}

/** The first one if none says how busy it is. */
async function firstQueue(hosts: readonly Host[], wanted: Wanted): Promise<Host> {
  const answers = await askHosts(hosts, 'machines', ['top', '--json'], TIMEOUT_MS, () => {});
  const known = hosts.flatMap((host, i) => {
    const snapshot = answers[i]?.records?.[0];
    return snapshot === undefined ? [] : [{ host, snapshot }];
  });
  return byExpectedWait(known, wanted)[0] ?? (hosts[0] as Host);
}
