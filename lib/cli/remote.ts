// `run` and `submit` on another machine: the options that the hosts are given.

import { resolve } from 'node:path';
import { type CommandElsewhere, commandFor, runElsewhere, submitElsewhere } from '../fleet/index.ts';
import { parseArray } from '../jobs/index.ts';
import { parseDuration, sanitize, shellWords, showValue, usageError } from '../platform/index.ts';
import { waitOption } from './claim-values.ts';
import { optionsOf } from './command.ts';
import type { AnyValues, Parsed } from './command-line.ts';
import { COMMAND as FIND } from './find.ts';
import { HOSTS, toArguments } from './hosts.ts';
import { jobOptions } from './job-options.ts';
import { isTerminal, print, say } from './output.ts';
import type { RUN_GROUPS, SUBMIT_GROUPS } from './run-options.ts';

/** A command, for people. */
const MAX_SHOWN = 300;

type RunArguments = Parsed<typeof RUN_GROUPS>;
type SubmitValues = Parsed<typeof SUBMIT_GROUPS>['values'];

/** Runs a command on another machine, and ends this process as it ended there. @param parsed checked as for this machine */
export async function runOn(on: string, parsed: RunArguments): Promise<void> {
  const command = commandOf(on, parsed);
  const hasTerminal = isTerminal(0) && isTerminal(1);
  process.exit(await runElsewhere(command, wordsFor('run', parsed), hasTerminal));
}

/** Submits a job on another machine, prints its address, and ends this process. @param parsed checked as for this machine */
export async function submitOn(on: string, given: RunArguments): Promise<void> {
  const command = commandOf(on, given);
  const mayMove = command.isAny && command.wait !== null;
  if (!mayMove) refuseMoving(given.values);
  const { after, values } = mayMove ? await jobsToFollow(given.values) : { after: [], values: given.values };
  const parsed = { ...given, values };
  const moving = command.isAny
    ? partsOf(given.values).map((part) => ({
        part,
        words: wordsFor('submit', partOf(parsed, part), 'moving').slice(1),
      }))
    : [];
  const job = {
    ...{ ...command, after, moving, name: values.name ?? null },
    shown: sanitize(shellWords(parsed.command), MAX_SHOWN),
    words: (host: string) => wordsFor('submit', parsed, host),
  };
  process.exit(await submitElsewhere(job, print)); // other hosts may still be asked
}

/** @throws ERR_INVALID_ARGUMENT for what is wrong with the hosts, or can't be sent there */
function commandOf(on: string, { values, args }: RunArguments): CommandElsewhere {
  const wait = waitOption(values, true);
  return {
    ...commandFor(on, resolve(values.chdir ?? '.'), args, values.env ?? []),
    count: Number(values.gpus ?? 1),
    criteria: criteriaOf(values),
    wait: wait && { ms: wait.maxWait === null ? null : parseDuration(wait.maxWait, '--wait') },
    say,
  };
}

/** The parts of an array that choose their hosts; null alone: it is none. @throws ERR_INVALID_ARGUMENT */
function partsOf(values: SubmitValues): readonly (number | null)[] {
  if (values.array === undefined) return [null];
  const { ids, atOnce } = parseArray(values.array);
  if (atOnce === null && !values['like-slurm']) return ids;
  const option = atOnce === null ? '--like-slurm' : `%${atOnce}`;
  throw usageError(`--array: ${option} needs one host, as each part chooses its own: use --on HOST`);
}

/** A part as a job of its own. */
function partOf(array: RunArguments, part: number | null): RunArguments {
  if (part === null) return array;
  const { array: _, output, ...values }: SubmitValues = array.values;
  const own = output?.replaceAll(/%%|%a/g, (each) => (each === '%a' ? String(part) : each));
  return { ...array, values: { ...values, ...(own === undefined ? {} : { output: own }) } };
}

/** The jobs that a new one is to follow before it joins a queue, and the other options. @throws ERR_INVALID_ARGUMENT */
async function jobsToFollow(given: SubmitValues) {
  const { after: _, 'after-ok': __, ...values } = given;
  const { after, afterOk, elsewhere, notBefore } = await jobOptions(given);
  if (notBefore !== undefined)
    throw usageError(
      '--after TIME needs one host, as --on any starts a job as soon as a host can serve it: use --on HOST',
    );
  const [here] = [...after, ...afterOk];
  if (here === undefined) return { after: elsewhere, values };
  throw usageError(
    `--after${after.length > 0 ? '' : '-ok'} ${showValue(here)}: with --on any, say on which host that job is: HOST:JOB, or any:JOB`,
  );
}

/** A host would take `any:3` for a job of its own. @throws ERR_INVALID_ARGUMENT */
function refuseMoving({ after = [], 'after-ok': afterOk = [] }: SubmitValues): void {
  const moving = [...after, ...afterOk].find((list) => /(?:^|,)\s*any:/.test(list));
  if (moving === undefined) return;
  throw usageError(
    `--after ${showValue(moving)}: only this machine knows that job; give its address on a host, HOST:JOB, or use --on any`,
  );
}

/** Options that the host isn't given as they are. */
const OWN = ['on', 'env', 'chdir'];
const WAITING = ['wait', 'no-wait'];

/**
 * The arguments there.
 * @param host has its own jobs without an address; 'moving': the mover says how long it waits
 */
function wordsFor(name: string, { values, command }: RunArguments, host = ''): string[] {
  const isOwn = (option: string) => OWN.includes(option) || (host === 'moving' && WAITING.includes(option));
  const options = toArguments(values, (option) => !isOwn(option)).map((option) =>
    /^--after(?:-ok)?=/.test(option)
      ? option.replace(/[^=,\s]+:(?=[^:,]+(?:,|$))/g, (each) => (each === `${host}:` ? '' : each))
      : option,
  );
  return [name, ...options, '--', ...command];
}

/** The options of a claim that `find` takes, too. The host is to say what is free now, so it doesn't wait. */
function criteriaOf(values: AnyValues): string[] {
  const known = 'groups' in FIND ? optionsOf(FIND.groups) : {};
  const own = ['json', ...WAITING, ...Object.keys(HOSTS)];
  return toArguments(values, (name) => Object.hasOwn(known, name) && !own.includes(name));
}
