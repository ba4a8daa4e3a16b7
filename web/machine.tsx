// Machines: their GPUs, the wait queue, jobs, and what each user has. All text is others': it is only ever set as text.
import type { ComponentChildren } from 'preact';
import { formatDuration, formatSince } from '../lib/platform/quantities.ts';
import type { MachineSnapshot } from '../lib/views/machine-view.ts';
import { type UserTotal, userTotals } from '../lib/views/user-totals.ts';
import type { HistoryAnswer, StreamMachine, UsageAnswer } from '../lib/views/web/shapes.ts';
import { type Density, type GPU, GPUCard, type Intruder, idleOf, labelOf } from './card.tsx';
import { type Column, Listing, Pair } from './listing.tsx';
import type { OpenLog } from './log.tsx';
import { colourOf, User } from './users.tsx';

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
  const used = new Set(snapshots.flatMap(({ intruders }) => intruders.map(({ uuid }) => uuid))).size;
  return [
    `${free} of ${plural(gpus.length, 'GPU')} free`,
    ...(waiting === 0 ? [] : [`${waiting} waiting`]),
    ...(used === 0 ? [] : [`${used} used without a claim`]),
  ].join(' · ');
}

interface MachinesProps {
  machines: readonly StreamMachine[];
  history: HistoryAnswer | null;
  usage: UsageAnswer | null;
  user: string;
  filter: string;
  /** By the server's clock. */
  now: number;
  onLog: (log: OpenLog) => void;
}

/** One machine, or all: what is listed then has its host. */
export function Machines({ machines, history, usage, user, filter, now, onLog }: MachinesProps) {
  const known = machines.flatMap(({ snapshot, ...machine }) =>
    snapshot === null ? [] : { ...machine, snapshot },
  );
  const areMany = machines.length > 1;
  if (known.length === 0 && !areMany)
    return machines[0]?.problem ? (
      <Hint command="gpu-owner doctor">No GPU can be shown. This command says what is missing:</Hint>
    ) : null;
  const matches = matcherOf(filter);
  const isWanted = (host: string, texts: readonly (string | null | undefined)[]) =>
    matches(areMany ? [host, ...texts] : texts);
  const snapshots = known.map(({ snapshot }) => snapshot);
  const days = new Map((history?.machines ?? []).map(({ host, gpus }) => [host, gpus]));
  const gpuCount = snapshots.reduce((sum, { gpus }) => sum + gpus.length, 0);
  const density: Density = gpuCount <= 8 ? 'cards' : gpuCount <= 32 ? 'compact' : 'lines';
  const groups = machines.flatMap((machine) => {
    const { host, snapshot } = machine;
    if (snapshot === null) return areMany && matches([host]) ? { machine, cards: [] } : [];
    const cards = snapshot.gpus
      .map((gpu) => ({ gpu, intruders: snapshot.intruders.filter(({ uuid }) => uuid === gpu.uuid) }))
      .filter((card) => isWanted(host, [...gpuTexts(card.gpu), ...card.intruders.flatMap(intruderTexts)]));
    return cards.length === 0 ? [] : { machine, cards };
  });
  const of = <Row,>(rows: (machine: (typeof known)[number]) => readonly Row[]): Of<Row>[] =>
    known.flatMap((machine) => {
      const { host: at, isLocal } = machine;
      return rows(machine).map((row) => ({ ...row, at, prefix: isLocal ? '' : `${at}:` }));
    });
  const waiting = of(({ snapshot }) => snapshot.queue);
  const waitingCount = snapshots.reduce((sum, snapshot) => sum + snapshot.waiting, 0);
  const jobs = of((machine) => machine.jobs);
  const people = peopleOf(snapshots, usage, now);
  const shown = {
    groups,
    waiting: waiting.filter(({ at, ...each }) => isWanted(at, requestTexts(each))),
    jobs: jobs.filter(({ at, ...each }) => isWanted(at, jobTexts(each))),
    people: people.filter(({ name }) => matches([name])),
  };
  if (filter.trim() !== '' && Object.values(shown).every(({ length }) => length === 0))
    return <p class="nothing">Nothing here matches “{filter.trim()}”. Esc shows all again.</p>;
  const hostColumn: Column<{ at: string }> | null = areMany
    ? { name: 'host', cell: ({ at }) => at, text: ({ at }) => at }
    : null;
  return (
    <>
      <Section
        title="GPUs"
        count={groups.reduce((sum, { cards }) => sum + cards.length, 0)}
        of={gpuCount}
        empty={<Hint command="gpu-owner doctor">The driver reports no GPU. This command says why:</Hint>}
        aside={
          density === 'cards' && history !== null
            ? 'utilization of 24 hours; leases and bookings of the next 12'
            : ''
        }
      >
        {groups.map(({ machine, cards }) => (
          <div key={machine.host} class={areMany && machine.problem !== null ? 'host stale' : 'host'}>
            {areMany && <HostTitle machine={machine} />}
            <ul class={`gpus ${density}`}>
              {cards.map(({ gpu, intruders }) => (
                <GPUCard
                  key={gpu.uuid}
                  gpu={gpu}
                  intruders={intruders}
                  day={days.get(machine.host)?.find(({ uuid }) => uuid === gpu.uuid)}
                  density={density}
                  now={now}
                  host={areMany ? machine.host : null}
                />
              ))}
            </ul>
          </div>
        ))}
      </Section>
      <Section
        title="Waiting"
        count={shown.waiting.length}
        of={waitingCount}
        empty={
          <Hint command="gpu-owner run -n 1 -- python train.py">
            Nothing waits. This takes a GPU, or waits for one:
          </Hint>
        }
      >
        <Listing
          label="Waiting"
          kind="waiting"
          columns={[hostColumn, ...requestColumns(now)]}
          rows={shown.waiting}
          keyOf={({ at, pid, position }) => `${at} ${pid} ${position}`}
          second={({ why }) => why}
          more={(request) => <RequestFacts request={request} now={now} />}
        />
        {waiting.length < waitingCount && <p class="quiet">These are the first of each machine.</p>}
      </Section>
      <Section
        title={`Jobs of ${user}`}
        count={shown.jobs.length}
        of={jobs.length}
        empty={
          <Hint command="gpu-owner submit -n 1 -- python train.py">
            {user} has no job. This starts one in the background:
          </Hint>
        }
      >
        <Listing
          label={`Jobs of ${user}`}
          kind="jobs"
          columns={[hostColumn, ...jobColumns(now, onLog)]}
          rows={shown.jobs}
          keyOf={({ at, id, pid, started }) => `${at} ${id} ${pid} ${started}`}
          second={secondOfJob}
        />
      </Section>
      {people.length > 0 && (
        <Section
          title="Users"
          count={shown.people.length}
          of={people.length}
          aside={usage === null || usage.users.length === 0 ? '' : 'GPU hours of the last 30 days'}
        >
          <Listing
            label="Users"
            kind={usage === null || usage.users.length === 0 ? 'users now' : 'users'}
            columns={userColumns(usage)}
            rows={shown.people}
            keyOf={({ name }) => name}
            second={({ unclaimed = 0 }) =>
              unclaimed > 0 ? <span class="bad">uses {plural(unclaimed, 'GPU')} without a claim</span> : null
            }
          />
        </Section>
      )}
    </>
  );
}

const requestColumns = (now: number): readonly Column<Of<Request>>[] => [
  { name: 'position', cell: ({ position }) => position },
  { name: 'who', cell: ({ user }) => <User name={user} />, text: ({ user }) => `${user}oo` },
  {
    name: 'wanted',
    cell: ({ count, memory }) =>
      memory === null ? plural(count, 'GPU') : `${count === 1 ? '' : `${count} × `}${memory}`,
  },
  {
    name: 'name',
    cell: ({ name, job }) => name ?? (job === null ? '' : `job ${job}`),
    text: ({ name }) => name ?? 'job 000',
  },
  { name: 'since', cell: ({ since }) => sinceCell(since, now) },
  { name: 'command', cell: ({ command }) => command },
];

function sinceCell(since: string | null, now: number): string {
  const moment = formatSince(since, now);
  if (moment === null) return '';
  const [amount, unit] = formatDuration(now - Date.parse(since ?? '')).split(' ');
  return `${moment.split(' ')[0]} · ${amount} ${unit}`;
}

function RequestFacts({ request, now }: { request: Request; now: number }) {
  const { details, note, command, job, pid, host, waitUntil, waitingFor, class: kind } = request;
  const byReason = new Map<string, string[]>();
  for (const gpu of waitingFor) byReason.set(gpu.reason, [...(byReason.get(gpu.reason) ?? []), labelOf(gpu)]);
  return (
    <>
      {details.map((text) => (
        <Pair key={text} name="Because" content={text} />
      ))}
      {[...byReason].map(([reason, labels]) => (
        <Pair key={reason} name={`GPU ${labels.join(', ')}`} content={reason} />
      ))}
      <Pair name="Gives up" content={formatSince(waitUntil, now)} />
      <Pair name="Class" content={kind === 'normal' ? '' : kind} />
      <Pair name="Note" content={note} />
      <Pair
        name="Process"
        content={[job === null ? '' : `job ${job}`, pid === null ? '' : `PID ${pid}`, host ?? '']
          .filter(Boolean)
          .join(', ')}
      />
      <Pair name="Command" content={command} />
    </>
  );
}

const jobColumns = (now: number, onLog: MachinesProps['onLog']): readonly Column<Of<Job>>[] => [
  { name: 'position', cell: (job) => <JobNumber job={job} onLog={onLog} /> },
  { name: 'name', cell: ({ name }) => <b>{name}</b>, text: ({ name }) => name },
  { name: 'status', cell: stateOfJob },
  {
    name: 'wanted',
    cell: ({ gpus, count }) =>
      gpus.length > 0 ? `GPU ${gpus.map(labelOf).join(',')}` : count === 0 ? '' : `(${plural(count, 'GPU')})`,
  },
  { name: 'since', cell: (job) => timeOfJob(job, now) },
  { name: 'command', cell: ({ command }) => command },
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

const stateOfJob = ({ state, exitCode }: Job) =>
  state === 'failed' && exitCode !== null ? `failed (${exitCode})` : state;

/** '8 h 20 min, until 07:33' */
function timeOfJob({ state, submitted, started, ended, until }: Job, now: number): string {
  const begin = Date.parse((state === 'waiting' ? submitted : started) ?? '');
  const end = ended === null ? now : Date.parse(ended);
  const limit = state === 'running' ? formatSince(until, now) : null;
  const lasted = Number.isNaN(end - begin) ? '' : formatDuration(end - begin);
  return limit === null ? lasted : `${lasted.split(' ').slice(0, 2).join(' ')}, until ${limit.split(' ')[0]}`;
}

function secondOfJob({ id, progress, reason, note }: Job): ComponentChildren {
  const said = [reason, note].filter(Boolean).join(' · ');
  if (progress === null) return said || null;
  const { done, total } = progress;
  return (
    <>
      <progress value={done} max={Math.max(1, total)} aria-label={`Tasks of job ${id}`} /> {done} of {total}{' '}
      tasks{said && ` · ${said}`}
    </>
  );
}

interface Person extends Partial<UserTotal> {
  name: string;
  /** On each day. */
  hours: readonly number[];
}

/** Users who have something now, or had GPUs in the last 30 days. */
function peopleOf(snapshots: readonly MachineSnapshot[], usage: UsageAnswer | null, now: number): Person[] {
  const totals = userTotals(snapshots, (gpu) => idleOf(gpu, now) !== null, 'unknown');
  const hours = new Map((usage?.users ?? []).map(({ user, gpuHours }) => [user, gpuHours]));
  const names = [...new Set([...totals.keys(), ...hours.keys()])];
  const size = ({ gpus = 0, shares = 0, instances = 0, unclaimed = 0, hours: days }: Person) =>
    gpus * 1e6 + (shares + instances) * 1e4 + unclaimed * 1e2 + Math.min(99, sumOf(days) / 100);
  return names
    .map((name) => ({ name, ...totals.get(name), hours: hours.get(name) ?? [] }))
    .sort((a, b) => size(b) - size(a));
}

function userColumns(usage: UsageAnswer | null): readonly Column<Person>[] {
  const most = Math.max(...(usage?.users ?? []).flatMap(({ gpuHours }) => gpuHours), 0);
  return [
    { name: 'who', cell: ({ name }) => <User name={name} />, text: ({ name }) => `${name}oo` },
    {
      name: 'has',
      cell: ({ gpus = 0, instances = 0, shares = 0, waiting = 0, idle = 0 }) =>
        [
          gpus === 0 ? '' : plural(gpus, 'GPU'),
          instances === 0 ? '' : plural(instances, 'MIG instance'),
          shares === 0 ? '' : plural(shares, 'share'),
          idle === 0 ? '' : `${idle} idle`,
          waiting === 0 ? '' : `${waiting} waiting`,
        ]
          .filter(Boolean)
          .join(' · '),
    },
    ...(most === 0 ? [] : usageColumns(usage, most)),
  ];
}

function usageColumns(usage: UsageAnswer | null, most: number): readonly Column<Person>[] {
  return [
    { name: 'hours', cell: ({ hours }) => (hours.length === 0 ? '' : `${hoursText(sumOf(hours))} h`) },
    {
      name: 'days',
      cell: ({ name, hours }) =>
        hours.length > 0 && <Bars name={name} hours={hours} days={usage?.days ?? []} most={most} />,
    },
  ];
}

const DAY_HEIGHT = 20;

function Bars({
  name,
  hours,
  days,
  most,
}: {
  name: string;
  hours: readonly number[];
  days: readonly string[];
  most: number;
}) {
  const own = Math.max(...hours);
  const label = `${name}: up to ${hoursText(own)} GPU hours a day, on ${days[hours.indexOf(own)]}`;
  return (
    <svg
      role="img"
      class={colourOf(name)}
      aria-label={label}
      viewBox={`0 0 ${days.length} ${DAY_HEIGHT}`}
      preserveAspectRatio="none"
    >
      {hours.map((each, i) => (
        <g key={days[i]}>
          <title>{`${days[i]}: ${hoursText(each)} GPU hours`}</title>
          <rect class="day" x={i} width={1} height={DAY_HEIGHT} />
          <rect
            x={i + 0.1}
            width={0.8}
            y={DAY_HEIGHT * (1 - each / most)}
            height={(DAY_HEIGHT * each) / most}
          />
        </g>
      ))}
    </svg>
  );
}

const sumOf = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0);
const hoursText = (hours: number) => (hours >= 100 ? hours.toFixed(0) : hours.toFixed(1));

function HostTitle({ machine }: { machine: StreamMachine }) {
  const { host, problem, snapshot } = machine;
  return (
    <h3>
      {host} <span class="quiet">{summaryOf([machine])}</span>{' '}
      {problem !== null && (
        <span class="bad">
          {problem}.{snapshot !== null && ' Showing the last snapshot.'}
        </span>
      )}
      {problem === null && snapshot === null && <span class="quiet">no answer yet</span>}
    </h3>
  );
}

/** Says what is missing, and the command that helps. */
function Hint({ command, children }: { command: string; children: ComponentChildren }) {
  return (
    <p class="hint">
      {children} <code>{command}</code>
    </p>
  );
}

interface SectionProps {
  title: string;
  /** How many are shown. */
  count: number;
  of: number;
  /** In place of the children if there are none at all. */
  empty?: ComponentChildren;
  aside?: string;
  children: ComponentChildren;
}

function Section({ title, count, of, empty, aside = '', children }: SectionProps) {
  const isEmpty = of === 0 && empty !== undefined;
  return (
    <section aria-label={title} class={title === 'GPUs' ? 'wide' : ''}>
      <h2>
        {title} {of > 0 && <span class="quiet">{count === of ? of : `${count} of ${of}`}</span>}
        {aside !== '' && <small>{aside}</small>}
      </h2>
      {isEmpty ? empty : count === 0 && of > 0 ? <p class="quiet">None match.</p> : children}
    </section>
  );
}

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
