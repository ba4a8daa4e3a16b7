import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import type { HostAnswer } from '../fleet/index.ts';
import { label } from '../gpus/index.ts';
import {
  detailsOfNamed,
  extendJob,
  formatPart,
  type Job,
  JobStore,
  listJobs,
  resolveNames,
  stateDirectory,
} from '../jobs/index.ts';
import {
  fitColumns,
  formatDuration,
  formatSince,
  idleText,
  ordinal,
  parseDuration,
  sanitize,
} from '../platform/index.ts';
import type { QueueEntry } from '../shapes/index.ts';
import { getQueue } from '../status/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, usage } from './command-line.ts';
import { askEach, askFleet, HOSTS_WITH_JSON, isForHosts, jobsOf, watchFleet } from './hosts.ts';
import { addressOf, byHost, jobWords } from './job-address.ts';
import { pageWidth, print, say, show } from './output.ts';
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
      from: {
        value: 'HOST',
        help: 'with `move ID`: have a waiting job leave a host that is gone for good; if it runs there, it runs twice',
      },
    },
    notes:
      'States: waiting, running, completed, failed, cancelled, lost (its processes are gone and its exit code is unknown: the machine was restarted, or they were killed).',
  },
] as const satisfies readonly OptionGroup[];

async function jobs(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values, positionals } = parsed;
  const interval = watchInterval(values);
  if (positionals[0] === 'move' && values.from !== undefined)
    return leaveHost(positionals.slice(1), values.from);
  if (positionals[0] === 'extend') return extend(positionals.slice(1));
  if (values.from !== undefined)
    throw usage('--from belongs to `jobs move`: gpu-owner jobs move any:5 --from gpu3');
  if (positionals.length > 0) return showEach(parsed, interval);
  const user = values.user ?? null;
  if (user === '') throw usage('--user needs the name or the uid of a user');
  if (isForHosts(values)) return jobsOfHosts(parsed, interval);
  const list = async () => {
    const others = user === null ? await moving() : [];
    const here = await whyTheyWait((queue) => jobsHere(parsed, user, others.length > 0, queue));
    return [...here, ...others];
  };
  const none =
    user !== null || values.all ? 'No jobs.' : 'No jobs. `gpu-owner jobs --all` lists old ones, too.';
  await refresh('jobs', interval, async () => {
    const listed = await list();
    if (values.json) return listed;
    return listed.length === 0 ? none : table(listed, pageWidth());
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

/** Lists jobs; if some are in the wait queue, again with what the driver says. Without the driver, locks tell enough. */
async function whyTheyWait<Listed extends Job>(
  list: (queue: readonly QueueEntry[]) => readonly Listed[],
): Promise<readonly Listed[]> {
  const listed = list([]);
  if (listed.every(({ position }) => position === null)) return listed;
  try {
    return list(await getQueue());
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    return listed;
  }
}

/** Jobs that move between machines. */
export async function moving(): Promise<Job[]> {
  if (!existsSync(join(stateDirectory(), 'gpu-owner/moving'))) return [];
  return (await import('../fleet/index.ts')).movingJobs();
}

/** One table with the jobs of all hosts, under their addresses. */
async function jobsOfHosts(parsed: Parsed<typeof GROUPS>, interval: number | null): Promise<void> {
  const { json } = parsed.values;
  if (interval !== null) {
    const shown = ({ host, records }: { host: string; records: readonly Job[] }) =>
      `${host}:\n${records.length === 0 ? 'No jobs.' : table(records, pageWidth())}\n`;
    return watchFleet('jobs', parsed, 'jobs', shown, interval);
  }
  if (json) return askFleet('jobs', parsed, 'jobs', () => '');
  const others = await moving();
  let shown: readonly HostAnswer<'jobs'>[] = [];
  /** Prints those that haven't been: first those that came soon. */
  const printNew = (answers: readonly HostAnswer<'jobs'>[]) => {
    const fresh = answers.filter((answer) => answer.error === null && !shown.includes(answer));
    if (fresh.length === 0) return;
    const found = fresh.flatMap(({ host, records }) => jobsOf(host, records ?? []));
    const all: Job[] = [...(shown.length === 0 ? others : []), ...found];
    shown = answers;
    print(all.length === 0 ? 'No jobs.' : table(all, pageWidth()));
  };
  const onAnswer = ({ host, error }: HostAnswer<'jobs'>) => error && say(`${host}: ${error.message}`);
  printNew(await askEach('jobs', parsed, 'jobs', onAnswer, printNew));
}

/** Shows jobs one by one, with all that is known of them. */
async function showEach(
  { values, positionals: words }: Parsed<typeof GROUPS>,
  interval: number | null,
): Promise<void> {
  const positionals = jobWords(words);
  for (const name of ['user', 'all', 'hosts', 'timeout'] as const)
    if (values[name] !== undefined) throw usage(`--${name} lists jobs; leave it out to show one`);
  const addresses = positionals.map(addressOf);
  const elsewhere = addresses.filter((address) => address !== null);
  if (elsewhere.length > 0) {
    if (elsewhere.length < addresses.length || interval !== null)
      throw usage('show jobs of other machines by themselves, and without --watch');
    const { jobsElsewhere } = await import('../fleet/index.ts');
    const found = await jobsElsewhere(elsewhere, say);
    return show(values.json ? found : found.map(details).join('\n\n'));
  }
  const store = JobStore.open();
  const all = resolveNames(store, positionals);
  await refresh('jobs', interval, async () => {
    const found = await whyTheyWait((queue) => all.map((named) => detailsOfNamed(store, named, queue)));
    return values.json ? found : found.map(details).join('\n\n');
  });
}

/** A line for each thing that is known. */
function details(job: Job): string {
  const time = (moment: string | null) => formatSince(moment) ?? '';
  const lines: [string, string][] = [
    ['job', `${numberOf(job)}${job.name === null ? '' : ` ${job.name}`}`],
    [
      'state',
      [job.state, job.exitCode === null ? '' : `exit code ${job.exitCode}`].filter(Boolean).join(', '),
    ],
    ['reason', inQueue(job)],
    ['command', job.command],
    ['directory', job.directory ?? ''],
    [
      'GPUs',
      job.gpus.length > 0
        ? gpusOf(job)
        : job.count === 0
          ? 'none'
          : `wants ${job.count}${job.parts === null ? '' : ' for each part'}`,
    ],
    ['note', job.note ?? ''],
    ['submitted', time(job.submitted)],
    ['started', time(job.started)],
    ['ended', time(job.ended)],
    ['took', job.state === 'waiting' ? '' : timeOf(job)],
    ['limit', job.limit == null ? '' : formatDuration(job.limit * 1_000)],
    ['until', time(job.until)],
    ['idle', idleText(job.idle, job.started) ?? ''],
    ['array', job.parts ?? ''],
    [
      job.parts === null ? 'tasks' : 'parts',
      job.progress === null ? '' : `${job.progress.done}/${job.progress.total}`,
    ],
    ['after', job.after.join(', ')],
    ['process', job.pid === null ? '' : String(job.pid)],
    ['output', job.output ?? ''],
  ];
  const width = Math.max(...lines.map(([title]) => title.length));
  return lines
    .filter(([, text]) => text !== '')
    .map(([title, text]) => `${title.padEnd(width)}  ${sanitize(text, 100_000)}`)
    .join('\n');
}

/** The number or address of a job. */
function numberOf({ id, host, array }: Job): string {
  const number = id === null ? 'run' : array === null ? String(id) : formatPart(array);
  return host === undefined ? number : `${host}:${number}`;
}

const COLUMNS = [
  // Addresses are typed.
  { title: 'ID', width: 5, right: true, isWhole: true, of: numberOf },
  { title: 'NAME', width: 12, right: false, isWhole: false, of: ({ name }: Job) => name ?? '' },
  { title: 'STATE', width: 9, right: false, isWhole: false, of: ({ state }: Job) => state },
  { title: 'GPU', width: 7, right: false, isWhole: false, of: gpusOf },
  { title: 'TIME', width: 7, right: true, isWhole: true, of: timeOf },
] as const;

/** A line per job that fits the width, and below it what there is to say. */
function table(jobs: readonly Job[], width: number): string {
  const widths = COLUMNS.map(({ width: least, isWhole: staysWhole, of }) =>
    staysWhole ? Math.max(least, ...jobs.map((job) => of(job).length)) : least,
  );
  const rest = Math.max(Math.max(width, 60) - widths.reduce((sum, each) => sum + each + 1, 0), 10);
  const line = (cells: readonly string[], last: string) =>
    [
      ...cells.map((cell, i) => {
        const columns = widths[i] ?? 0;
        const right = COLUMNS[i]?.right;
        const fitted = fitColumns(cell, columns);
        return right ? fitted.padStart(columns) : fitted.padEnd(columns);
      }),
      fitColumns(last, rest),
    ]
      .join(' ')
      .trimEnd();
  const lines = jobs.flatMap((job) => [
    line(
      COLUMNS.map(({ of }) => of(job)),
      sanitize(job.command),
    ),
    ...remarks(job).map((remark) => `      ${fitColumns(remark, Math.max(width, 60) - 6)}`),
  ]);
  return [
    line(
      COLUMNS.map(({ title }) => title),
      'COMMAND',
    ),
    ...lines,
  ].join('\n');
}

function gpusOf({ gpus, count }: Job): string {
  if (gpus.length > 0) {
    const named = gpus.map((gpu) => label({ ...gpu, instance: gpu.instance ?? null })).join(',');
    // A record names as many as fit.
    return gpus.length < count ? `${named} and ${count - gpus.length} more` : named;
  }
  return count === 0 ? '' : `(${count})`;
}

/** How long it has been running or waiting, or ran. */
function timeOf({ state, submitted, started, ended }: Job): string {
  const begin = state === 'waiting' || state === 'moving' ? submitted : started;
  const end =
    state === 'waiting' || state === 'moving' || state === 'running' ? Date.now() : Date.parse(ended ?? '');
  const passed = end - Date.parse(begin ?? '');
  return Number.isNaN(passed) ? '' : formatDuration(Math.max(0, passed));
}

/** '2nd in the queue: after …' */
function inQueue({ position, reason }: Pick<Job, 'position' | 'reason'>): string {
  return `${position === null ? '' : `${ordinal(position)} in the queue: `}${reason ?? ''}`;
}

function remarks({
  preempted,
  retried,
  ran,
  state,
  exitCode,
  reason,
  position,
  until,
  idle,
  started,
  note,
  after,
  parts,
  progress,
}: Job): string[] {
  const texts: string[] = [];
  if (progress !== null)
    texts.push(`${progress.done}/${progress.total} ${parts === null ? 'tasks' : 'parts'}`);
  if (reason !== null && reason !== '') texts.push(inQueue({ position, reason }));
  else if (state === 'waiting' && after.length > 0) texts.push(`after ${after.join(', ')}`);
  if (preempted > 0)
    texts.push(
      `preempted ${preempted === 1 ? 'once' : `${preempted} times`}, ran ${formatDuration(ran * 1_000)}`,
    );
  if (retried > 0)
    texts.push(`failed ${retried === 1 ? 'once' : `${retried} times`} before, and was restarted`);
  if (state === 'failed' && exitCode !== null) texts.push(`exit code ${exitCode}`);
  if (until !== null) {
    const left = Date.parse(until) - Date.now();
    texts.push(left > 0 ? `${formatDuration(left)} left, until ${formatSince(until)}` : 'time limit reached');
  }
  const rest = idleText(idle, started);
  if (rest !== null) texts.push(rest);
  const remark = texts.join('; ');
  return [...(remark === '' ? [] : [remark]), ...(note === null ? [] : [`note: ${note}`])];
}

/** `jobs extend JOB... DURATION` */
async function extend(words: readonly string[]): Promise<void> {
  const duration = words.at(-1) ?? '';
  if (words.length < 2) throw usage('write gpu-owner jobs extend 17 2h: it lets job 17 run 2 hours longer');
  const ms = parseDuration(duration, 'jobs extend');
  const { here, elsewhere } = byHost(words.slice(0, -1));
  const others =
    elsewhere.size === 0
      ? null
      : (await import('./jobs-elsewhere.ts')).commandElsewhere(elsewhere, ['jobs', 'extend'], [duration]);
  if (here.length > 0) {
    const store = JobStore.open();
    const all = resolveNames(
      store,
      here.map(({ word }) => word),
    );
    for (const [i, named] of all.entries()) {
      const id = typeof named === 'number' ? named : store.jobOfPart(named);
      const word = here[i]?.word;
      if (id === null) throw usage(`part ${word} has not begun: it can be extended once it is in the queue`);
      print(`job ${word} may run ${formatDuration(await extendJob(store, id, ms))}`);
    }
  }
  await others;
}

/** `jobs move ID --from HOST` */
async function leaveHost(words: readonly string[], from: string | undefined): Promise<void> {
  const [address, more] = words.map(addressOf);
  if (from === undefined || from === '' || address?.host !== 'any' || more !== undefined)
    throw usage('write gpu-owner jobs move any:5 --from gpu3: it leaves a host that is gone for good');
  await (await import('../fleet/index.ts')).leaveHost(address.job, from, say);
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [JOB...] | extend JOB... DURATION | move ID --from HOST',
  about: `Lists your jobs on this machine: waiting jobs with the reason, running jobs with their GPUs and remaining time, and jobs that ended within the last day. A \`gpu-owner run\` of yours has no number. With numbers or names of jobs, or HOST:JOB for a job of another machine, it prints everything about each, and where its output is. \`extend\` lets jobs run that much longer than their time limit.`,
  groups: GROUPS,
  operands: 'jobs',
  run: jobs,
};
