import { type Answer, askHosts, chooseHosts, type Records } from '../fleet/index.ts';
import { MAX_TIMER_MS, parseDuration } from '../platform/index.ts';
import { EXIT_CODES } from './exit-codes.ts';
import { type OptionTable, type Parsed, usage, type Values } from './options.ts';
import { print, say } from './output.ts';

const DEFAULT_TIMEOUT = '10s';

/** Options of commands that can ask other machines. */
export const HOSTS: OptionTable = {
  hosts: {
    value: 'LIST|all',
    help: 'ask other machines over ssh: names as in `ssh NAME` (a,b), or all that the configuration lists; --json prints an object with an entry per host',
  },
  timeout: {
    value: 'DURATION',
    help: `with --hosts, give a host up after DURATION (default ${DEFAULT_TIMEOUT})`,
    candidates: ['5s', '10s', '1m'],
  },
};

/** Options that the hosts aren't given. */
const OWN = ['hosts', 'timeout', 'json', 'words', 'watch', 'wait', 'no-wait', 'max-wait', 'output'];

/** @throws ERR_INVALID_ARGUMENT */
export function isForHosts(values: Values): boolean {
  if (values.hosts !== undefined) return true;
  if (values.timeout !== undefined) throw usage('--timeout belongs to --hosts');
  return false;
}

/**
 * Has a command run on the hosts that the options name, and prints each answer as it arrives, or all as JSON. Ends with 0 if any host
 * answered.
 * @param name the command
 * @param show an answer as text
 * @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export async function askFleet<Kind extends keyof Records>(
  name: string,
  parsed: Parsed,
  kind: Kind,
  show: (answer: { host: string; records: Records[Kind][] }) => string,
): Promise<void> {
  const { json } = parsed.values;
  const report = ({ host, records, error }: Answer<Kind>) => {
    if (error === null) print(show({ host, records }));
    else say(`${host}: ${error.message}`);
  };
  const answers = await askEach(name, parsed, kind, json ? () => {} : report);
  if (json) {
    const entries = answers.map(({ host, version, records, error }) => [
      host,
      error === null ? { version, [kind]: records } : version === null ? { error } : { version, error },
    ]);
    print(JSON.stringify(Object.fromEntries(entries), null, 2));
  }
}

/**
 * As {@link askFleet}, but prints nothing.
 * @returns the answers, in the order of the hosts
 */
export async function askEach<Kind extends keyof Records>(
  name: string,
  { values }: Parsed,
  kind: Kind,
  onAnswer: (answer: Answer<Kind>) => void,
): Promise<Answer<Kind>[]> {
  const timeout = parseDuration(values.timeout ?? DEFAULT_TIMEOUT, '--timeout');
  if (timeout === 0) throw usage('--timeout: a host needs some time to answer; use 10s, for example');
  const hosts = chooseHosts(String(values.hosts));
  const words = [
    name,
    '--json',
    ...Object.entries(values)
      .filter(([option]) => !OWN.includes(option))
      .flatMap(wordsOf),
  ];
  const answers = await askHosts(hosts, kind, words, Math.min(timeout, MAX_TIMER_MS), onAnswer);
  process.exitCode = exitCodeOf(answers);
  return answers;
}

function exitCodeOf(answers: readonly Answer<keyof Records>[]): number {
  if (answers.some(({ error }) => error === null)) return 0;
  // `find` has been answered, too, where it found nothing.
  const isNothingFree = answers.some(({ error }) => error?.code === 'ERR_GPU_UNAVAILABLE');
  return isNothingFree ? EXIT_CODES.ERR_GPU_UNAVAILABLE : EXIT_CODES.ERR_NO_DRIVER;
}

/** An option as it was given. */
export function wordsOf([name, value]: [string, Values[string]]): string[] {
  if (value === undefined) return [];
  const all = Array.isArray(value) ? value : [value];
  return all.map((each) => (each === true ? `--${name}` : `--${name}=${String(each)}`));
}
