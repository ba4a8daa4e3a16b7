import { label } from '../gpus/index.ts';
import { JobStore, pauseJob, putJobsFirst, resolveJobs, resumeJob } from '../jobs/index.ts';
import { fitColumns, formatDuration, formatSince, usageError } from '../platform/index.ts';
import { getQueue, type QueueEntry } from '../status/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './command-line.ts';
import { askFleet, HOSTS_WITH_JSON, isForHosts } from './hosts.ts';
import { pageWidth, show } from './output.ts';

const INDENT = ' '.repeat(5);
/** The holder and the end come first. */
const MAX_REASON_LENGTH = 60;

const GROUPS = [
  {
    options: {
      json: {
        help: 'print an array of { position, count, class, user, uid, pid, host, command, since, job, name, note, stopped, latestStart, waitUntil, why, details, waitingFor: [{ index, uuid, reason }] }',
      },
      pause: { help: 'suspend your waiting jobs: they keep their place, and others are served' },
      resume: { help: 'resume paused jobs' },
      first: { help: 'move waiting jobs before your others' },
      ...HOSTS_WITH_JSON,
    },
  },
] as const satisfies readonly OptionGroup[];

async function queue(parsed: Parsed<typeof GROUPS>): Promise<void> {
  if (changesJobs(parsed)) return;
  rejectOperands(parsed);
  const list = (entries: readonly QueueEntry[]) => {
    const width = Math.max(pageWidth(), 60);
    if (entries.length === 0) return 'Nobody is waiting.';
    return entries.map((entry) => paragraph(entry, width)).join('\n');
  };
  if (isForHosts(parsed.values))
    return askFleet('queue', parsed, 'queue', ({ host, records }) => `${host}:\n${list(records)}\n`);
  const entries = await getQueue();
  show(parsed.values.json ? entries : list(entries));
}

/** Whether the options ask for a change of one's own jobs, and not for a list. */
function changesJobs({ values, positionals }: Parsed<typeof GROUPS>): boolean {
  const chosen = (['pause', 'resume', 'first'] as const).filter((name) => values[name] === true);
  const [change] = chosen;
  if (change === undefined) return false;
  if (chosen.length > 1)
    throw usageError(`--${change} and --${chosen[1]} can't go together; use one after the other`);
  if (positionals.length === 0)
    throw usageError(`--${change}: which job? Give its number or name; \`gpu-owner jobs\` lists them`);
  const store = JobStore.open();
  const ids = resolveJobs(store, positionals);
  if (change === 'first') putJobsFirst(store, ids);
  else for (const id of ids) (change === 'pause' ? pauseJob : resumeJob)(store, id);
  return true;
}

function paragraph(entry: QueueEntry, width: number): string {
  const { position, count, memory, user, pid, command, since, job, name, note, stopped, why } = entry;
  const when = formatSince(since);
  const who = [
    `${memory === null ? '' : `${memory} of `}${count === 1 ? 'a GPU' : `${count} GPUs`} for ${user}`,
    when === null ? '' : ` since ${when}`,
    pid === null ? '' : ` (pid ${pid}${command === null ? '' : `: ${command}`})`,
    [job === null ? '' : `, job ${job}`, name === null ? '' : `${job === null ? ', ' : ' '}${name}`].join(''),
    stopped ? ', suspended: skipped until it resumes' : '',
  ].join('');
  const reasons = [fitColumns(`${INDENT}${together(entry)}`, width)];
  reasons.unshift(...entry.details.map((text) => INDENT + text));
  if (note !== null) reasons.unshift(`${INDENT}note: ${note}`);
  if (entry.waitUntil !== null) {
    const left = Date.parse(entry.waitUntil) - Date.now();
    reasons.unshift(`${INDENT}gives up in ${formatDuration(left)}`);
  }
  if (!stopped) reasons.unshift(INDENT + why);
  return [`${String(position).padStart(3)}. ${who}`, ...reasons].join('\n');
}

/** 'GPU 0,1: leased by bob since 14:03; GPU 2: …' */
function together({ waitingFor }: QueueEntry): string {
  const byReason = new Map<string, string[]>();
  for (const gpu of waitingFor) {
    const reason = fitColumns(gpu.reason, MAX_REASON_LENGTH);
    byReason.set(reason, [...(byReason.get(reason) ?? []), label(gpu)]);
  }
  return [...byReason].map(([reason, labels]) => `GPU ${labels.join(',')}: ${reason}`).join('; ');
}

export const COMMAND: Command = {
  usage: '[OPTIONS] | (--pause | --resume | --first) JOB...',
  about: `Shows which requests wait for GPUs on this machine, in the order in which they will be served, and what each of them waits for. It takes nothing. --pause, --resume and --first change your own waiting jobs; JOB is a number or a name.`,
  groups: GROUPS,
  operands: 'jobs',
  run: queue,
};
