import { EXIT_CODES } from '../errors.ts';
import type { HostAnswer, Records } from '../fleet/index.ts';
import type { Job } from '../jobs/index.ts';
import { MAX_TIMER_MS, parseDuration, TIMEOUTS, usageError } from '../platform/index.ts';
import type { AnyValues, InferValues, OptionTable } from './command-line.ts';
import { print, say, show } from './output.ts';

const DEFAULT_TIMEOUT = '10s';

/** Options of commands that can ask other machines. */
export const HOSTS = {
  hosts: {
    value: 'LIST|all',
    help: 'ask other machines over ssh: names as in `ssh NAME` (a,b), or all that the configuration lists',
  },
  timeout: {
    value: 'DURATION',
    help: `with --hosts, stop waiting for a host after DURATION (default ${DEFAULT_TIMEOUT})`,
    candidates: ['5s', '10s', '1m'],
  },
} satisfies OptionTable;

/** As {@link HOSTS}, of commands that print JSON. */
export const HOSTS_WITH_JSON = {
  ...HOSTS,
  hosts: { ...HOSTS.hosts, help: `${HOSTS.hosts.help}; --json prints an object with an entry per host` },
} satisfies OptionTable;

/** Options that the hosts aren't given. */
const OWN = ['hosts', 'timeout', 'json', 'verbose', 'wait', 'no-wait', 'output'];

/** The values of a command for hosts, and its other ones, which the hosts are given. */
type ValuesForHosts = InferValues<typeof HOSTS> & { readonly json?: true; readonly watch?: string | true };

/** @throws ERR_INVALID_ARGUMENT */
export function isForHosts(values: ValuesForHosts): boolean {
  if (values.hosts !== undefined) {
    if (values.watch === undefined) return true;
    throw usageError(
      '--watch is for this machine; `gpu-owner top --hosts` shows other machines as they change',
    );
  }
  if (values.timeout !== undefined) throw usageError('--timeout belongs to --hosts');
  return false;
}

/**
 * Has a command run on the hosts that the options name, and prints each answer as it arrives, or all as JSON. Ends with 0 if any host
 * answered.
 * @param name the command
 * @param textOf an answer as text
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export async function askFleet<Kind extends keyof Records>(
  name: string,
  parsed: { values: ValuesForHosts },
  kind: Kind,
  textOf: (answer: { host: string; records: Records[Kind][] }) => string,
): Promise<void> {
  const { json } = parsed.values;
  const report = ({ host, records, error }: HostAnswer<Kind>) => {
    if (error === null) print(textOf({ host, records }));
    else say(`${host}: ${error.message}`);
  };
  const answers = await askEach(name, parsed, kind, json ? () => {} : report);
  if (json) {
    const entries = answers.map((answer) => [answer.host, jsonOf(kind, answer)]);
    show(Object.fromEntries(entries));
  }
}

function jsonOf<Kind extends keyof Records>(kind: Kind, { host, version, records, error }: HostAnswer<Kind>) {
  if (error === null) return { version, [kind]: kind === 'jobs' ? jobsOf(host, records as Job[]) : records };
  return version === null ? { error } : { version, error };
}

/** The jobs that a host itself has: others that it lists move between hosts. */
export function jobsOf(host: string, records: readonly Job[]): (Job & { host: string })[] {
  return records.filter((job) => !('host' in job)).map((job) => ({ ...job, host }));
}

/**
 * As {@link askFleet}, but prints no answer.
 * @param onSlow called with the answers so far, before silent hosts are named, and with each answer from then on
 * @returns the answers, in the order of the hosts
 */
export async function askEach<Kind extends keyof Records>(
  name: string,
  { values }: { values: ValuesForHosts },
  kind: Kind,
  onAnswer: (answer: HostAnswer<Kind>) => void,
  onSlow: (known: readonly HostAnswer<Kind>[]) => void = () => {},
): Promise<HostAnswer<Kind>[]> {
  const { askHosts, chooseHosts } = await import('../fleet/index.ts');
  const hosts = chooseHosts(values.hosts ?? '');
  const words = [name, '--json', ...optionsForHosts(values)];
  const known = new Map<string, HostAnswer<Kind>>();
  let isSlow = false;
  const tellKnown = () => onSlow(hosts.flatMap((host) => known.get(host.name) ?? []));
  const slow = setTimeout(() => {
    isSlow = true;
    tellKnown();
    const silent = hosts.filter((host) => !known.has(host.name));
    say(`waiting for an answer of ${silent.map((host) => host.name).join(', ')}`);
  }, TIMEOUTS.slowHost);
  const answers = await askHosts(hosts, kind, words, timeoutOf(values), (answer) => {
    known.set(answer.host, answer);
    onAnswer(answer);
    if (isSlow) tellKnown();
  });
  clearTimeout(slow);
  process.exitCode = exitCodeOf(answers);
  return answers;
}

/** The command by which a host tells how it is, a line per interval, with those of the options that concern it. */
export function topWords(values: AnyValues, intervalMs: number): string[] {
  const own = toArguments(values, (name) => name === 'simulate');
  return ['top', '--json', `--interval=${intervalMs}ms`, ...own];
}

/** How long a host has to answer, in ms. */
export function timeoutOf({ timeout: given = DEFAULT_TIMEOUT }: ValuesForHosts): number {
  const timeout = parseDuration(given, '--timeout');
  if (timeout === 0) throw usageError('--timeout: a host needs some time to answer; use 10s, for example');
  return Math.min(timeout, MAX_TIMER_MS);
}

const optionsForHosts = (values: AnyValues) => toArguments(values, (option) => !OWN.includes(option));

function exitCodeOf(answers: readonly HostAnswer<keyof Records>[]): number {
  if (answers.some(({ error }) => error === null)) return 0;
  // `find` has been answered, too, where it found nothing.
  const isNothingFree = answers.some(({ error }) => error?.code === 'ERR_GPU_UNAVAILABLE');
  return isNothingFree ? EXIT_CODES.ERR_GPU_UNAVAILABLE : EXIT_CODES.ERR_NO_DRIVER;
}

/** Options as they were given. @param isWanted by its name */
export function toArguments(values: AnyValues, isWanted: (option: string) => boolean): string[] {
  return Object.entries(values).flatMap(([name, value]) => {
    if (value === undefined || !isWanted(name)) return [];
    const all = Array.isArray(value) ? value : [value];
    return all.map((each) => (each === true ? `--${name}` : `--${name}=${each}`));
  });
}
