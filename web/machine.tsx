// Machines: their GPUs, who waits, processes without a claim, jobs, and what each user has. All text is others': it is only ever set as
// text.
import type { ComponentChildren } from 'preact';
import { formatBytes, formatDuration } from '../lib/platform/quantities.ts';
import type { MachineSnapshot } from '../lib/views/machine-view.ts';
import { type UserTotal, userTotals } from '../lib/views/user-totals.ts';
import type { Sweep, UsageAnswer } from '../lib/views/web/answers.ts';
import type { HistoryAnswer, StreamMachine } from '../lib/views/web/feed.ts';
import { type GPU, GPUCard, type Intruder, idleOf, labelOf, sinceText, untilText } from './card.tsx';
import { firstSlotOf, Legend } from './history.tsx';
import { type Column, Listing } from './listing.tsx';
import type { OpenLog } from './log.tsx';
import { SweepCharts, SweepLegend } from './sweeps.tsx';
import { Scale, usageColumns } from './usage.tsx';

type Request = MachineSnapshot['queue'][number];
type Job = StreamMachine['jobs'][number];
/** A row with its host, and where the API has its jobs. */
type Of<Row> = Row & { at: string; prefix: string };

const isDivided = (gpu: GPU) => gpu.migEnabled === true;
const plural = (count: number, word: string) => `${count} ${word}${count === 1 ? '' : 's'}`;

/** How many GPUs are free, and how many requests wait; '' if nothing is known. */
export function summaryOf(machines: readonly StreamMachine[]): string {
  const snapshots = machines.flatMap(({ snapshot }) => snapshot ?? []);
  if (snapshots.length === 0) return '';
  const gpus = snapshots.flatMap((snapshot) => snapshot.gpus.filter((gpu) => !isDivided(gpu)));
  const waiting = snapshots.reduce((sum, snapshot) => sum + snapshot.waiting, 0);
  const free = gpus.filter(({ state }) => state === 'free').length;
  const intruders = snapshots.reduce((sum, snapshot) => sum + snapshot.intruders.length, 0);
  return [
    `${free} of ${plural(gpus.length, 'GPU')} free`,
    ...(waiting === 0 ? [] : [`${waiting} waiting`]),
    ...(intruders === 0 ? [] : [`${intruders} without a claim`]),
  ].join(', ');
}

interface MachinesProps {
  machines: readonly StreamMachine[];
  history: HistoryAnswer | null;
  usage: UsageAnswer | null;
  sweeps: readonly Sweep[];
  user: string;
  filter: string;
  /** By the server's clock. */
  now: number;
  onLog: (log: OpenLog) => void;
}

/** One machine, or all: what is listed then has its host. */
export function Machines({ machines, history, usage, sweeps, user, filter, now, onLog }: MachinesProps) {
  const known = machines.flatMap(({ snapshot, ...machine }) =>
    snapshot === null ? [] : { ...machine, snapshot },
  );
  const areMany = machines.length > 1;
  if (known.length === 0 && !areMany) return null;
  const matches = matcherOf(filter);
  const isWanted = (host: string, texts: readonly (string | null | undefined)[]) =>
    matches(areMany ? [host, ...texts] : texts);
  const snapshots = known.map(({ snapshot }) => snapshot);
  const days = new Map((history?.machines ?? []).map(({ host, gpus }) => [host, gpus]));
  const firstSlot = firstSlotOf([...days.values()].flat());
  const gpuCount = snapshots.reduce((sum, { gpus }) => sum + gpus.length, 0);
  const groups = known.flatMap(({ host, problem, snapshot: { gpus, intruders } }) => {
    const cards = gpus
      .map((gpu) => ({ gpu, intruders: intruders.filter(({ uuid }) => uuid === gpu.uuid) }))
      .filter((card) => isWanted(host, [...gpuTexts(card.gpu), ...card.intruders.flatMap(intruderTexts)]));
    return cards.length === 0 ? [] : { host, problem, cards };
  });
  const of = <Row,>(rows: (machine: (typeof known)[number]) => readonly Row[]): Of<Row>[] =>
    known.flatMap((machine) => {
      const { host: at, isLocal } = machine;
      return rows(machine).map((row) => ({ ...row, at, prefix: isLocal ? '' : `${at}:` }));
    });
  const silent = machines.filter(({ snapshot }) => snapshot === null);
  const waiting = of(({ snapshot }) => snapshot.queue);
  const waitingCount = snapshots.reduce((sum, snapshot) => sum + snapshot.waiting, 0);
  const intruders = of(({ snapshot: { gpus, intruders } }) =>
    intruders.map((each) => ({ ...each, gpu: gpus.find(({ uuid }) => uuid === each.uuid) })),
  );
  const jobs = of((machine) => machine.jobs);
  const totals = totalsOf(snapshots, now).map(([name, total]) => ({ ...total, name }));
  const used = usage?.users ?? [];
  const shown = {
    gpus: groups.reduce((sum, { cards }) => sum + cards.length, 0),
    silent: silent.filter(({ host }) => matches([host])),
    waiting: waiting.filter(({ at, ...each }) => isWanted(at, requestTexts(each))),
    intruders: intruders.filter(({ at, ...each }) => isWanted(at, intruderTexts(each))),
    sweeps: sweeps.filter(({ job, name, state }) => matches([jobNumber(job), name, state])),
    jobs: jobs.filter(({ at, ...each }) => isWanted(at, jobTexts(each))),
    totals: totals.filter(({ name }) => matches([name])),
    used: used.filter((each) => matches([each.user])),
  };
  const { gpus, ...lists } = shown;
  if (filter.trim() !== '' && gpus === 0 && Object.values(lists).every(({ length }) => length === 0))
    return <p class="nothing">Nothing here matches “{filter.trim()}”. Esc shows all again.</p>;
  const hostColumn: Column<{ at: string }> | null = areMany
    ? { title: 'Host', cell: ({ at }) => at, kind: 'heading' }
    : null;
  return (
    <>
      <Section
        title="GPUs"
        count={gpus}
        of={gpuCount}
        empty={areMany ? 'No host has answered yet.' : 'The driver reports no GPU.'}
        aside={history !== null && <Legend />}
      >
        {groups.map(({ host, problem, cards }) => (
          <div key={host} class={areMany && problem !== null ? 'host stale' : 'host'}>
            {areMany && <HostTitle host={host} problem={problem} />}
            <ul class="cards">
              {cards.map(({ gpu, intruders }) => (
                <GPUCard
                  key={gpu.uuid}
                  gpu={gpu}
                  intruders={intruders}
                  day={days.get(host)?.find(({ uuid }) => uuid === gpu.uuid)}
                  firstSlot={firstSlot}
                  now={now}
                  host={areMany ? host : null}
                />
              ))}
            </ul>
          </div>
        ))}
      </Section>
      {areMany && silent.length > 0 && (
        <Section title="Without an answer" count={shown.silent.length} of={silent.length} empty="">
          <Listing
            label="Without an answer"
            columns={SILENT_COLUMNS}
            rows={shown.silent}
            keyOf={({ host }) => host}
          />
        </Section>
      )}
      <Section title="Waiting" count={shown.waiting.length} of={waitingCount} empty="Nobody is waiting.">
        <Listing
          label="Waiting"
          columns={[hostColumn, ...requestColumns(now)]}
          rows={shown.waiting}
          keyOf={({ at, pid, position }) => `${at} ${pid} ${position}`}
        />
        {waiting.length < waitingCount && <p>These are the first of each machine.</p>}
      </Section>
      <Section title={`Jobs of ${user}`} count={shown.jobs.length} of={jobs.length} empty="No jobs.">
        <Listing
          label={`Jobs of ${user}`}
          columns={[hostColumn, ...jobColumns(now, onLog)]}
          rows={shown.jobs}
          keyOf={({ at, id, pid, started }) => `${at} ${id} ${pid} ${started}`}
        />
      </Section>
      {shown.sweeps.length > 0 && (
        <Section
          title="Sweeps"
          count={shown.sweeps.length}
          of={sweeps.length}
          empty=""
          aside={<SweepLegend />}
        >
          <SweepCharts sweeps={shown.sweeps} />
        </Section>
      )}
      <Section title="Users" count={shown.totals.length} of={totals.length} empty="Nobody uses a GPU.">
        <Listing label="Users" columns={USER_COLUMNS} rows={shown.totals} keyOf={({ name }) => name} />
      </Section>
      {usage !== null && used.length > 0 && (
        <Section
          title="Last 30 days"
          count={shown.used.length}
          of={used.length}
          empty=""
          aside={<Scale {...usage} />}
        >
          <Listing
            label="Last 30 days"
            columns={usageColumns(usage)}
            rows={shown.used}
            keyOf={({ uid }) => String(uid)}
          />
        </Section>
      )}
      <Section title="Without a claim" count={shown.intruders.length} of={intruders.length} empty="None.">
        <Listing
          label="Without a claim"
          columns={[hostColumn, ...INTRUDER_COLUMNS]}
          rows={shown.intruders}
          keyOf={({ at, uuid, pid }) => `${at} ${uuid} ${pid}`}
        />
      </Section>
    </>
  );
}

const SILENT_COLUMNS: readonly Column<StreamMachine>[] = [
  { title: 'Host', cell: ({ host }) => host, kind: 'heading' },
  { title: 'Problem', cell: ({ problem }) => problem ?? 'no answer yet', kind: 'text' },
];

const requestColumns = (now: number): readonly Column<Of<Request>>[] => [
  { title: '#', cell: ({ position }) => position },
  { title: 'User', cell: ({ user }) => user, kind: 'heading' },
  {
    title: 'GPUs',
    cell: ({ count, memory }) => (memory === null ? count : `${count === 1 ? '' : `${count} × `}${memory}`),
  },
  { title: 'Job', cell: ({ job }) => job },
  { title: 'Name', cell: ({ name }) => name },
  { title: 'Since', cell: ({ since }) => sinceText(since, now) },
  { title: 'Why', cell: ({ why }) => why, kind: 'text' },
  { title: 'Note', cell: ({ note }) => note, kind: 'note' },
  { title: 'Command', cell: ({ command }) => command, kind: 'rest' },
];

const INTRUDER_COLUMNS: readonly Column<Of<Intruder & { gpu: GPU | undefined }>>[] = [
  { title: 'GPU', cell: ({ gpu }) => (gpu === undefined ? '?' : labelOf(gpu)), kind: 'heading' },
  { title: 'User', cell: ({ user }) => user ?? 'unknown' },
  { title: 'Process', cell: ({ name }) => name ?? 'not visible' },
  { title: 'PID', cell: ({ pid }) => pid },
  { title: 'Memory', cell: ({ usedBytes }) => (usedBytes === null ? null : formatBytes(usedBytes)) },
  { title: 'Leased by', cell: ({ gpu }) => gpu?.lease?.user },
];

const jobColumns = (now: number, onLog: MachinesProps['onLog']): readonly Column<Of<Job>>[] => [
  { title: 'ID', cell: (job) => <JobNumber job={job} onLog={onLog} />, kind: 'heading' },
  { title: 'Name', cell: ({ name }) => name },
  { title: 'State', cell: stateOfJob },
  {
    title: 'GPUs',
    cell: ({ gpus, count }) => (gpus.length > 0 ? gpus.map(labelOf).join(', ') : `(${count})`),
  },
  { title: 'Time', cell: (job) => durationOf(job, now) },
  { title: 'Until', cell: ({ state, until }) => (state === 'running' ? untilText(until, now) : null) },
  { title: 'Tasks', cell: tasksOf },
  { title: 'Note', cell: ({ note }) => note, kind: 'note' },
  { title: 'Reason', cell: ({ reason }) => reason, kind: 'text' },
  { title: 'Command', cell: ({ command }) => command, kind: 'rest' },
];

const USER_COLUMNS: readonly Column<UserTotal & { name: string }>[] = [
  { title: 'User', cell: ({ name }) => name, kind: 'heading' },
  {
    title: 'GPUs',
    cell: ({ gpus, instances, shares }) =>
      `${gpus}${instances === 0 ? '' : ` and ${plural(instances, 'MIG instance')}`}${shares === 0 ? '' : ` and ${plural(shares, 'share')}`}`,
  },
  { title: 'Memory', cell: ({ memory }) => formatBytes(memory) },
  {
    title: 'Utilization',
    cell: ({ utilization }) => (utilization.length === 0 ? null : `${Math.round(mean(utilization))} %`),
  },
  { title: 'Idle', cell: ({ idle }) => (idle === 0 ? null : plural(idle, 'GPU')) },
  { title: 'Waiting', cell: ({ waiting }) => (waiting === 0 ? null : plural(waiting, 'request')) },
  { title: 'Without a claim', cell: ({ unclaimed }) => (unclaimed === 0 ? null : plural(unclaimed, 'GPU')) },
];

/** Opens the log, where there is one: `run` has its output on a terminal. */
function JobNumber({ job, onLog }: { job: Of<Job>; onLog: MachinesProps['onLog'] }) {
  const { id, prefix, name, command } = job;
  if (id === null) return 'run';
  const address = `${prefix}${id}`;
  const title = `job ${address}${name === null ? '' : ` (${name})`}`;
  const label = `Log of ${title}`;
  return (
    <button
      type="button"
      class="link"
      title={label}
      aria-label={label}
      onClick={() => onLog({ address, title, command })}
    >
      {id}
    </button>
  );
}

function stateOfJob({ state, exitCode }: Job): string {
  return state === 'failed' && exitCode !== null ? `failed (exit code ${exitCode})` : state;
}

function durationOf({ state, submitted, started, ended }: Job, now: number): string | null {
  const begin = Date.parse((state === 'waiting' ? submitted : started) ?? '');
  const end = ended === null ? now : Date.parse(ended);
  return Number.isNaN(end - begin) ? null : formatDuration(end - begin);
}

function tasksOf({ id, progress }: Job): ComponentChildren {
  if (progress === null) return null;
  const { done, total } = progress;
  return (
    <>
      <progress value={done} max={Math.max(1, total)} aria-label={`Tasks of job ${id}`} /> {done} of {total}{' '}
      tasks
    </>
  );
}

function HostTitle({ host, problem }: { host: string; problem: string | null }) {
  return (
    <h3>
      {host} {problem !== null && <span class="bad">{problem}. Showing the last snapshot.</span>}
    </h3>
  );
}

interface SectionProps {
  title: string;
  /** How many are shown. */
  count: number;
  of: number;
  empty: string;
  aside?: ComponentChildren;
  children: ComponentChildren;
}

function Section({ title, count, of, empty, aside = null, children }: SectionProps) {
  return (
    <section aria-label={title}>
      <div class="heading">
        <h2>
          {title} {of > 0 && <span class="count">{count === of ? of : `${count} of ${of}`}</span>}
        </h2>
        {aside}
      </div>
      {of === 0 ? <p class="empty">{empty}</p> : count === 0 ? <p class="empty">None match.</p> : children}
    </section>
  );
}

function totalsOf(snapshots: readonly MachineSnapshot[], now: number): [string, UserTotal][] {
  const totals = userTotals(snapshots, (gpu) => idleOf(gpu, now) !== null, 'unknown');
  return [...totals].sort(
    ([, a], [, b]) => b.gpus - a.gpus || b.instances - a.instances || b.unclaimed - a.unclaimed,
  );
}

const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

const jobNumber = (job: number | null | undefined) =>
  job === null || job === undefined ? null : `job ${job}`;

function gpuTexts(gpu: GPU): (string | null | undefined)[] {
  const { lease, name, state, reason } = gpu;
  const holder = [lease?.user, lease?.name, lease?.note, lease?.command, jobNumber(lease?.job)];
  return [`GPU ${labelOf(gpu)}`, name, state, reason, ...holder];
}

const intruderTexts = ({ name, user, pid }: Intruder) => ['without a claim', name, user, `PID ${pid}`];

const requestTexts = ({ user, command, job, name, note }: Request) => [
  user,
  command,
  jobNumber(job),
  name,
  note,
];

const jobTexts = ({ id, name, command, note, state }: Job) => [jobNumber(id), name, command, note, state];

function matcherOf(filter: string): (texts: readonly (string | null | undefined)[]) => boolean {
  const wanted = filter.trim().toLowerCase();
  return (texts) => wanted === '' || texts.some((text) => text?.toLowerCase().includes(wanted));
}
