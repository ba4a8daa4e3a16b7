// `run` and `submit` on another machine.
import { chooseHosts, type HostRefusal, runOnHost, startWhereFree, submitOnHost } from '../fleet/index.ts';
import { shellWords, showValue } from '../platform/index.ts';
import { waitOption } from './claim-options.ts';
import { optionsOf } from './command.ts';
import { EXIT_CODES, type ExitCodes } from './exit-codes.ts';
import { COMMAND as FIND } from './find.ts';
import { HOSTS, toArguments } from './hosts.ts';
import { type AnyValues, type Parsed, usage } from './options.ts';
import { isTerminal, print, say, write } from './output.ts';
import type { RUN_GROUPS, RunRequest } from './run-request.ts';

/** How long a host has to answer, in ms. */
const TIMEOUT_MS = 10_000;
/** How long a host that has said that GPUs are free has to grant them, in ms: a driver that hangs takes a while. */
const GRANT_TIMEOUT_MS = 30_000;
/** The exit code of a command whose output has no reader any more, as a shell has it. */
const SIGPIPE = 128 + 13;
/** Linux takes 128 KiB for one argument of a program, and base64 makes a third more of it. */
const MAX_WORDS_LENGTH = 90_000;

type Hosts = ReturnType<typeof chooseHosts>;
type RunArguments = Parsed<typeof RUN_GROUPS>;

/** Runs a command on another machine, and ends this process as it ended there. @param parsed checked as for this machine */
export async function runOn(list: string, parsed: RunArguments, { exitCodes }: RunRequest): Promise<void> {
  const { hosts, isAny, directory } = check(list, parsed);
  const hasTerminal = isTerminal(0) && isTerminal(1);
  const words = wordsFor('run', parsed, isAny);
  const start = async (host: Hosts[number]): Promise<HostRefusal | null> => {
    const end = await runOnHost(host, {
      ...{ words, directory, hasTerminal, isQuiet: isAny },
      grantTimeoutMs: isAny ? GRANT_TIMEOUT_MS : null,
      onOutput: (bytes) => write(1, bytes, SIGPIPE),
      onErrors: (bytes) => write(2, bytes),
    });
    if (end.state === 'failed') return end;
    if (end.state === 'killed') return endBy(end.signal);
    if (end.note !== null) say(`${host.name}: ${end.note}`);
    process.exitCode = end.exitCode;
    return null;
  };
  await choose(hosts, isAny, parsed.values, exitCodes, start);
}

/** Submits a job on another machine, and prints its address. */
export async function submitOn(list: string, parsed: RunArguments, { exitCodes }: RunRequest): Promise<void> {
  const { hosts, isAny, directory } = check(list, parsed);
  const timeoutMs = isAny || parsed.values['no-wait'] ? GRANT_TIMEOUT_MS : TIMEOUT_MS;
  await choose(hosts, isAny, parsed.values, exitCodes, async (host) => {
    const words = wordsFor('submit', parsed, isAny, host.name);
    const answer = await submitOnHost(host, words, directory, timeoutMs);
    if (answer.error !== null) return answer;
    print(`${host.name}:${answer.id}`);
    return null;
  });
}

/** @throws ERR_INVALID_ARGUMENT for what is wrong with the hosts, or can't be sent there */
function check(list: string, parsed: RunArguments) {
  const { values } = parsed;
  const isAny = list.trim() === 'any' || list.includes(',');
  if (isAny && waitOption(values, false) !== null)
    throw usage('--on any does not wait: it takes the first host on which enough GPUs are free now');
  const hosts = chooseHosts(list, '--on', 'any');
  const directory = process.cwd();
  const size = Buffer.byteLength(shellWords([directory, ...parsed.args])); // quoted: each ' takes four
  if (size > MAX_WORDS_LENGTH)
    throw usage(`--on: arguments of ${size} bytes are too many for ssh: pass long lists in a file`);
  const odd = [directory, ...parsed.args].find((word) => word.includes('\ufffd'));
  if (odd !== undefined) throw usage(`--on: ${showValue(odd)} is not UTF-8, and would get lost on the way`);
  return { hosts, isAny, directory };
}

/** The arguments there. @param host has its own jobs without an address; null: not known */
function wordsFor(
  name: string,
  { values, command }: RunArguments,
  isAny: boolean,
  host: string | null = null,
): string[] {
  const options = toArguments(values, (option) => option !== 'on' && option !== 'no-wait').map((option) =>
    /^--after(?:-ok)?=/.test(option)
      ? option.replace(/[^=,\s]+:(?=[^:,]+(?:,|$))/g, (each) => (each === `${host}:` ? '' : each))
      : option,
  );
  const wait = values['no-wait'] || isAny ? ['--no-wait'] : [];
  return [name, ...wait, ...options, '--', ...command];
}

/**
 * Starts on the host, or on the first that has enough free GPUs and gives them.
 * @param start returns why it doesn't run there; null: it did
 */
async function choose(
  hosts: Hosts,
  isAny: boolean,
  values: AnyValues,
  exitCodes: ExitCodes,
  start: (host: Hosts[number]) => Promise<HostRefusal | null>,
): Promise<void> {
  const startOnly = async ([host]: [Hosts[number]]) => {
    const refusal = await start(host);
    return refusal && [{ host: host.name, ...refusal }];
  };
  const refusals = isAny
    ? await startWhereFree(hosts, criteriaOf(values), TIMEOUT_MS, start)
    : await startOnly(hosts as [Hosts[number]]);
  if (refusals !== null) {
    for (const { host, error } of refusals) say(`${host}: ${error.message}`);
    // A user who is told that no GPU is free tries again, and the command would run twice.
    const uncertain = refusals.filter(({ isCertain }) => !isCertain);
    const decisive = uncertain.length > 0 ? uncertain : refusals;
    process.exitCode = exitCodeOf(
      decisive.map(({ error }) => error.code),
      isAny,
      exitCodes,
    );
  }
  process.exit(); // other hosts may still be asked
}

function exitCodeOf(codes: readonly string[], isAny: boolean, exitCodes: ExitCodes): number {
  // A host on which nothing is free has answered, too.
  if (isAny && codes.includes('ERR_GPU_UNAVAILABLE')) return exitCodes.ERR_GPU_UNAVAILABLE;
  const [code = ''] = codes;
  const own = Object.entries(exitCodes).find(([each]) => each === code)?.[1];
  if (own !== undefined && codes.every((each) => each === code)) return own;
  return code === 'ERR_HOST_DIRECTORY' ? exitCodes.ERR_INVALID_ARGUMENT : exitCodes.ERR_NO_DRIVER;
}

/** The options of a claim that `find` takes, too. */
function criteriaOf(values: AnyValues): string[] {
  const known = 'groups' in FIND ? optionsOf(FIND.groups) : {};
  const own = ['json', 'no-wait', ...Object.keys(HOSTS)];
  return toArguments(values, (name) => Object.hasOwn(known, name) && !own.includes(name));
}

/** Ends as ssh was ended. */
function endBy(signal: NodeJS.Signals): never {
  process.kill(process.pid, signal);
  process.exit(EXIT_CODES.ERR_ABORTED); // where it has a handler
}
