import {
  cancelNamed,
  describeNamed,
  formatName,
  isLiving,
  JobStore,
  type NamedJob,
  resolveNames,
  stateOf,
} from '../jobs/index.ts';
import { parseDuration, showValue, usageError } from '../platform/index.ts';
import type { Command } from './command.ts';
import type { OptionGroup, Parsed } from './command-line.ts';
import { byHost } from './job-address.ts';
import { say } from './output.ts';

const DEFAULT_GRACE_MS = 10_000;
const MAX_GRACE_MS = 3_600_000;

const GROUPS = [
  {
    options: {
      grace: {
        value: 'DURATION',
        help: 'time between SIGTERM and SIGKILL (default 10s)',
        candidates: ['10s', '1m'],
      },
      all: { help: 'cancel all your jobs of this machine, and those that may move to it' },
    },
  },
] as const satisfies readonly OptionGroup[];

async function cancel({ values, positionals }: Parsed<typeof GROUPS>): Promise<void> {
  if (values.all && positionals.length > 0) throw usageError('--all means all jobs; leave out the others');
  if (positionals.length === 0 && !values.all)
    throw usageError('which job? Give its number or name, or --all; `gpu-owner jobs` lists them');
  const grace = values.grace === undefined ? DEFAULT_GRACE_MS : parseDuration(values.grace, '--grace');
  if (grace > MAX_GRACE_MS)
    throw usageError(`--grace: ${showValue(values.grace)} is more than an hour; use 1h or less`);
  const { here, elsewhere } = byHost(values.all ? await allJobs() : positionals);
  if (values.all && here.length + elsewhere.size === 0) return say('none of your jobs waits or runs');
  const words = ['cancel', ...(values.grace === undefined ? [] : [`--grace=${values.grace}`])];
  const others =
    elsewhere.size === 0
      ? null
      : (await import('./jobs-elsewhere.ts')).commandElsewhere(elsewhere, words, [], Math.ceil(grace));
  if (here.length > 0) await cancelHere(here, grace);
  await others;
}

/** Words for all jobs that wait or run here. A job that may move is cancelled by its own number, at all its places. */
async function allJobs(): Promise<string[]> {
  const store = JobStore.open();
  const own = store
    .ids()
    .filter((id) => isLiving(stateOf(store, id)?.state) && !store.read(id)?.request.move);
  const movable = (await (await import('./jobs.ts')).moving()).map(({ id, host }) => `${host}:${id}`);
  return [...own.map(String), ...movable];
}

async function cancelHere(here: readonly { word: string }[], grace: number): Promise<void> {
  const store = JobStore.open();
  const all = resolveNames(
    store,
    here.map(({ word }) => word),
  );
  const end = (some: readonly NamedJob[]) =>
    Promise.all(
      some.map(async (named) => ({ named, outcome: await cancelNamed(store, named, Math.ceil(grace)) })),
    );
  // First those that wait: none of them shall start on the GPUs of another one.
  const waiting = all.filter((named) => describeNamed(store, named).state === 'waiting');
  const outcomes = [...(await end(waiting)), ...(await end(all.filter((each) => !waiting.includes(each))))];
  for (const { named, outcome } of outcomes) {
    const job = formatName(named);
    if (outcome === 'not-alive') say(`job ${job} had ended already`);
    if (outcome === 'surviving') {
      say(
        `job ${job} has processes that can't be ended (a driver call that hangs, or another user's): it ends with them`,
      );
      process.exitCode = 1;
    }
  }
}

export const COMMAND: Command = {
  usage: 'JOB...|--all [--grace DURATION]',
  about: `Cancels jobs: a waiting job ends at once; all processes of a running job get SIGTERM, and SIGKILL after a grace period. Jobs that follow it with --after-ok are cancelled, too. JOB is a number or a name, HOST:JOB one of another machine; 4-6,9 are several. Returns when the jobs have ended.`,
  groups: GROUPS,
  notes: "Exit code: 0 if none of the jobs is alive any longer, 1 if something can't be ended.",
  operands: 'living-jobs',
  run: cancel,
};
