import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import type { HostAnswer } from '../fleet/index.ts';
import { type Job, listJobs } from '../jobs/index.ts';
import { stateDirectory, usageError } from '../platform/index.ts';
import type { QueueEntry } from '../shapes/index.ts';
import type { Command } from './command.ts';
import type { OptionGroup, Parsed } from './command-line.ts';
import { askEach, askFleet, HOSTS_WITH_JSON, isForHosts, jobsOf } from './hosts.ts';
import { jobTable } from './job-table.ts';
import { extend, queueOf, showEach } from './named-jobs.ts';
import { pageWidth, print, say } from './output.ts';
import { refresh, WATCH, watchInterval } from './refresh.ts';

const GROUPS = [
  {
    options: {
      all: { help: 'list all jobs, also those that ended earlier' },
      user: { value: 'USER', help: "list another user's jobs, as far as their locks show; a name or a uid" },
      json: {
        help: 'print an array of { id, name, state, exitCode, reason, position, count, gpus: [{ index, uuid }], command, note, user, pid, submitted, started, ended, until, idle, after, output, preempted, retried, ran, array: { id, index }, parts, progress }',
      },
      ...WATCH,
      ...HOSTS_WITH_JSON,
    },
    notes:
      'States: waiting, running, completed, failed, cancelled, lost (its processes are gone and its exit code is unknown: the machine was restarted, or they were killed).',
  },
] as const satisfies readonly OptionGroup[];

async function jobs(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values, positionals } = parsed;
  const interval = watchInterval(values);
  if (positionals[0] === 'extend') return extend(positionals.slice(1));
  if (positionals.length > 0) {
    for (const name of ['user', 'all', 'hosts', 'timeout'] as const)
      if (values[name] !== undefined) throw usageError(`--${name} lists jobs; leave it out to show one`);
    return showEach(positionals, values.json === true, interval);
  }
  const user = values.user ?? null;
  if (user === '') throw usageError('--user needs the name or the uid of a user');
  if (isForHosts(values)) return jobsOfHosts(parsed);
  const list = async () => {
    const others = user === null ? await moving() : [];
    return [...jobsHere(parsed, user, others.length > 0, await queueOf(user)), ...others];
  };
  const none =
    user !== null || values.all ? 'No jobs.' : 'No jobs. `gpu-owner jobs --all` lists old ones, too.';
  await refresh('jobs', interval, async () => {
    const listed = await list();
    if (values.json) return listed;
    return listed.length === 0 ? none : jobTable(listed, pageWidth());
  });
}

/** @param hasOthers whether there is something to list on a machine that can have no jobs */
function jobsHere(
  { values }: Parsed<typeof GROUPS>,
  user: string | null,
  hasOthers: boolean,
  queue: readonly QueueEntry[],
): Job[] {
  try {
    return listJobs({ user, all: values.all === true, lockDirectory: undefined, queue });
  } catch (error) {
    if (hasOthers && error instanceof GPUOwnerError) return [];
    throw error;
  }
}

/** Jobs that move between machines. */
export async function moving(): Promise<Job[]> {
  if (!existsSync(join(stateDirectory(), 'gpu-owner/moving'))) return [];
  return (await import('../fleet/index.ts')).movingJobs();
}

/** One table with the jobs of all hosts, under their addresses. */
async function jobsOfHosts(parsed: Parsed<typeof GROUPS>): Promise<void> {
  if (parsed.values.json) return askFleet('jobs', parsed, 'jobs', () => '');
  const others = await moving();
  let shown: readonly HostAnswer<'jobs'>[] = [];
  /** Prints those that haven't been: first those that came soon. */
  const printNew = (answers: readonly HostAnswer<'jobs'>[]) => {
    const fresh = answers.filter((answer) => answer.error === null && !shown.includes(answer));
    if (fresh.length === 0) return;
    const found = fresh.flatMap(({ host, records }) => jobsOf(host, records ?? []));
    const all: Job[] = [...(shown.length === 0 ? others : []), ...found];
    shown = answers;
    print(all.length === 0 ? 'No jobs.' : jobTable(all, pageWidth()));
  };
  const onAnswer = ({ host, error }: HostAnswer<'jobs'>) => error && say(`${host}: ${error.message}`);
  printNew(await askEach('jobs', parsed, 'jobs', onAnswer, printNew));
}

export const COMMAND: Command = {
  usage: '[JOB...] | extend JOB... DURATION',
  about: `Lists your jobs on this machine: waiting jobs with the reason, running jobs with their GPUs and remaining time, and jobs that ended within the last day. A \`gpu-owner run\` of yours has no number. With numbers or names of jobs, or HOST:JOB for a job of another machine, it prints everything about each, and where its output is. \`extend\` lets jobs run that much longer than their time limit.`,
  groups: GROUPS,
  operands: 'jobs',
  run: jobs,
};
