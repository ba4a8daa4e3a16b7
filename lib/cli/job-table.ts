// Jobs as people read them: a line for each, or all that is known of one.
import { label } from '../gpus/index.ts';
import { formatPart, type Job } from '../jobs/index.ts';
import { fitColumns, formatDuration, formatSince, idleText, ordinal, sanitize } from '../platform/index.ts';

/** A line for each thing that is known. */
export function jobPage(job: Job): string {
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
export function jobTable(jobs: readonly Job[], width: number): string {
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

function remarks(job: Job): string[] {
  const { state, reason, position, progress, preempted, retried, exitCode, until, note } = job;
  const texts: string[] = [];
  if (progress !== null)
    texts.push(`${progress.done}/${progress.total} ${job.parts === null ? 'tasks' : 'parts'}`);
  if (reason !== null && reason !== '') texts.push(inQueue({ position, reason }));
  else if (state === 'waiting' && job.after.length > 0) texts.push(`after ${job.after.join(', ')}`);
  if (preempted > 0)
    texts.push(
      `preempted ${preempted === 1 ? 'once' : `${preempted} times`}, ran ${formatDuration(job.ran * 1_000)}`,
    );
  if (retried > 0)
    texts.push(`failed ${retried === 1 ? 'once' : `${retried} times`} before, and was restarted`);
  if (state === 'failed' && exitCode !== null) texts.push(`exit code ${exitCode}`);
  if (until !== null) {
    const left = Date.parse(until) - Date.now();
    texts.push(left > 0 ? `${formatDuration(left)} left, until ${formatSince(until)}` : 'time limit reached');
  }
  const rest = idleText(job.idle, job.started);
  if (rest !== null) texts.push(rest);
  const remark = texts.join('; ');
  return [...(remark === '' ? [] : [remark]), ...(note === null ? [] : [`note: ${note}`])];
}
