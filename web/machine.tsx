// Machines: their GPUs, who waits, processes without a claim, jobs, and what each user has. All text is others': it is only ever set as
// text.
import type { ComponentChildren } from 'preact';
import { formatBytes, formatDuration, formatSince } from '../lib/platform/quantities.ts';
import type { MachineSnapshot } from '../lib/views/machine-view.ts';
import { type UserTotal, userTotals } from '../lib/views/user-totals.ts';
import type { HistoryAnswer, StreamMachine } from '../lib/views/web/feed.ts';
import { Chart, Legend } from './history.tsx';

type GPU = MachineSnapshot['gpus'][number];
type Request = MachineSnapshot['queue'][number];
type Intruder = MachineSnapshot['intruders'][number];
type Job = StreamMachine['jobs'][number];

/** Shorter rest is nothing to tell; as `status` has it. */
const MIN_IDLE_MS = 60_000;
const MIN_IDLE_LOOKS = 3;

const isDivided = (gpu: GPU) => gpu.migEnabled === true;
const labelOf = ({ index, instance }: { index: number; instance?: number | null }) =>
  typeof instance === 'number' ? `${index}:${instance}` : String(index);
const titleOf = (gpu: { index: number; instance: number | null }) =>
  `${gpu.instance === null ? 'GPU' : 'MIG'} ${labelOf(gpu)}`;
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
  user: string;
  filter: string;
  /** By the server's clock. */
  now: number;
}

/** One machine, or all: what is listed then has its host. */
export function Machines({ machines, history, user, filter, now }: MachinesProps) {
  const shown = machines.flatMap(({ snapshot, ...machine }) =>
    snapshot === null ? [] : { ...machine, snapshot },
  );
  const areMany = machines.length > 1;
  if (shown.length === 0 && !areMany) return null;
  const wanted = matcherOf(filter);
  const all = shown.map(({ host, problem, jobs, snapshot }) => {
    const { gpus, queue, waiting, intruders } = snapshot;
    const isWanted = (texts: readonly (string | null | undefined)[]) =>
      wanted(areMany ? [host, ...texts] : texts);
    const days = history?.machines.find((machine) => machine.host === host)?.gpus ?? [];
    const shownGPUs = gpus.filter((gpu) => isWanted(gpuTexts(gpu)));
    return {
      host,
      problem,
      total: { gpus: gpus.length, waiting, intruders: intruders.length, jobs: jobs.length },
      isCut: queue.length < waiting,
      gpuOf: new Map(gpus.map((gpu) => [gpu.uuid, gpu])),
      gpus: shownGPUs,
      days: days.filter(({ uuid }) => shownGPUs.some((gpu) => gpu.uuid === uuid)),
      queue: queue.filter(({ user, command, job, name, note }) =>
        isWanted([user, command, job === null ? null : `job ${job}`, name, note]),
      ),
      intruders: intruders.filter(({ name, user }) => isWanted([name, user])),
      jobs: jobs.filter(({ id, name, command, note, state }) =>
        isWanted([id === null ? null : `job ${id}`, name, command, note, state]),
      ),
    };
  });
  const sum = (of: (machine: (typeof all)[number]) => number) =>
    all.reduce((total, machine) => total + of(machine), 0);
  const silent = machines.filter(({ host, snapshot }) => snapshot === null && wanted([host]));
  const hostColumn = areMany ? ['Host'] : [];
  const totals = [
    ...totalsOf(
      shown.map(({ snapshot }) => snapshot),
      now,
    ),
  ].filter(([name]) => wanted([name]));
  const dayCount = sum(({ days }) => days.length);
  return (
    <>
      <Section
        title="GPUs"
        count={sum(({ gpus }) => gpus.length)}
        of={sum(({ total }) => total.gpus)}
        empty={areMany ? 'No host has answered yet.' : 'The driver reports no GPU.'}
      >
        {all.map(
          ({ host, problem, gpus }) =>
            gpus.length > 0 && (
              <div key={host} class={areMany && problem !== null ? 'host stale' : 'host'}>
                {areMany && <HostTitle host={host} problem={problem} />}
                <ul class="cards">
                  {gpus.map((gpu) => (
                    <GPUCard key={gpu.uuid} gpu={gpu} now={now} isInHost={areMany} />
                  ))}
                </ul>
              </div>
            ),
        )}
      </Section>
      {areMany && silent.length > 0 && (
        <Section title="Without an answer" count={silent.length} of={silent.length} empty="">
          <Table titles={['Host', 'Problem']} label="Without an answer">
            {silent.map(({ host, problem }) => (
              <tr key={host}>
                <th scope="row">{host}</th>
                <td class="remark">{problem ?? 'no answer yet'}</td>
              </tr>
            ))}
          </Table>
        </Section>
      )}
      <Section
        title="Waiting"
        count={sum(({ queue }) => queue.length)}
        of={sum(({ total }) => total.waiting)}
        empty="Nobody is waiting."
      >
        <Table titles={[...hostColumn, '', 'User', 'GPUs', 'Since', 'Job', 'Command']} label="Waiting">
          {all.flatMap(({ host, queue }) =>
            queue.map((request) => (
              <WaitingRow
                key={`${host} ${request.pid} ${request.position}`}
                host={areMany ? host : null}
                request={request}
                now={now}
              />
            )),
          )}
        </Table>
        {all.some(({ isCut }) => isCut) && <p>These are the first of each machine.</p>}
      </Section>
      <Section
        title="Without a claim"
        count={sum(({ intruders }) => intruders.length)}
        of={sum(({ total }) => total.intruders)}
        empty="None."
      >
        <Table titles={[...hostColumn, 'GPU', 'Process', 'User', 'PID', 'Memory']} label="Without a claim">
          {all.flatMap(({ host, intruders, gpuOf }) =>
            intruders.map((intruder) => (
              <IntruderRow
                key={`${host} ${intruder.uuid} ${intruder.pid}`}
                host={areMany ? host : null}
                intruder={intruder}
                gpu={gpuOf.get(intruder.uuid)}
              />
            )),
          )}
        </Table>
      </Section>
      {!areMany && (
        <Section
          title={`Jobs of ${user}`}
          count={sum(({ jobs }) => jobs.length)}
          of={sum(({ total }) => total.jobs)}
          empty="No jobs."
        >
          <Table
            titles={['ID', 'Name', 'State', 'GPUs', 'Time', 'Remark', 'Command']}
            label={`Jobs of ${user}`}
          >
            {all.flatMap(({ jobs }) =>
              jobs.map((job) => <JobRow key={`${job.id} ${job.pid} ${job.started}`} job={job} now={now} />),
            )}
          </Table>
        </Section>
      )}
      <Section title="Users" count={totals.length} of={totals.length} empty="Nobody uses a GPU.">
        <Table
          titles={['User', 'GPUs', 'Memory', 'Utilization', 'Idle', 'Waiting', 'Without a claim']}
          label="Users"
        >
          {totals.map(([name, total]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>
                {total.gpus}
                {total.instances > 0 && ` and ${plural(total.instances, 'MIG instance')}`}
              </td>
              <td>{formatBytes(total.memory)}</td>
              <td>{total.utilization.length === 0 ? '' : `${Math.round(mean(total.utilization))} %`}</td>
              <td>{total.idle || ''}</td>
              <td>{total.waiting || ''}</td>
              <td>{total.withoutClaim || ''}</td>
            </tr>
          ))}
        </Table>
      </Section>
      {history !== null && (
        <Section
          title="Last 24 hours"
          count={dayCount}
          of={dayCount}
          empty="Nothing is known yet."
          hasNoCount
        >
          <Legend />
          <div class="charts">
            {all.flatMap(({ host, days }) =>
              days.map((day) => (
                <Chart
                  key={`${host} ${day.uuid}`}
                  day={day}
                  label={`${areMany ? `${host} ` : ''}${titleOf(day)}`}
                  slotSeconds={history.slotSeconds}
                />
              )),
            )}
          </div>
        </Section>
      )}
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
  hasNoCount?: boolean;
  children: ComponentChildren;
}

function Section({ title, count, of, empty, hasNoCount = false, children }: SectionProps) {
  return (
    <section aria-label={title}>
      <h2>
        {title}{' '}
        {of > 0 && !hasNoCount && <span class="count">{count === of ? of : `${count} of ${of}`}</span>}
      </h2>
      {of === 0 ? <p class="empty">{empty}</p> : count === 0 ? <p class="empty">None of these.</p> : children}
    </section>
  );
}

function Table({
  titles,
  label,
  children,
}: {
  titles: string[];
  label: string;
  children: ComponentChildren;
}) {
  return (
    // Where it is wider than the screen, it must scroll by keyboard, too.
    // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable regions need it
    <section class="scroll" aria-label={`Table: ${label}`} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {titles.map((title) =>
              title === '' ? (
                <td key={title} />
              ) : (
                <th key={title} scope="col">
                  {title}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </section>
  );
}

function GPUCard({ gpu, now, isInHost }: { gpu: GPU; now: number; isInHost: boolean }) {
  const Title = isInHost ? 'h4' : 'h3';
  const { memory, lease, utilizationPercent, powerWatts, temperatureCelsius, state, reason } = gpu;
  const label = labelOf(gpu);
  const rest = idleText(gpu, now);
  const readings = [
    temperatureCelsius === null ? '' : `${temperatureCelsius} °C`,
    powerWatts === null ? '' : `${Math.round(powerWatts)} W`,
  ].filter(Boolean);
  return (
    <li class={`card ${state}`}>
      <Title>
        {titleOf(gpu)} <span class="state">{state}</span>
      </Title>
      <p class="model">{[gpu.name, ...readings].join(' · ')}</p>
      <Meter
        name="Utilization"
        of={`GPU ${label}`}
        share={utilizationPercent === null ? null : utilizationPercent / 100}
        text={utilizationPercent === null ? '?' : `${utilizationPercent} %`}
      />
      <Meter
        name="Memory"
        of={`GPU ${label}`}
        share={memory.usedBytes !== null && memory.totalBytes ? memory.usedBytes / memory.totalBytes : null}
        text={
          memory.usedBytes === null
            ? '?'
            : `${formatBytes(memory.usedBytes)} of ${formatBytes(memory.totalBytes)}`
        }
      />
      {lease === null ? (
        reason !== null && <p class="reason">{reason}</p>
      ) : (
        <dl>
          <dt>Holder</dt>
          <dd class="holder">{lease.user}</dd>
          <Detail name="Job" text={jobText(lease)} />
          <Detail name="Note" text={lease.note ?? null} />
          <Detail name="Command" text={lease.command} />
          <Detail name="Since" text={sinceText(lease.since, now)} />
          <Detail name="Until" text={lease.until === undefined ? null : untilText(lease.until, now)} />
          <Detail name="Idle" text={rest} isBad />
        </dl>
      )}
    </li>
  );
}

function Detail({ name, text, isBad = false }: { name: string; text: string | null; isBad?: boolean }) {
  if (text === null || text === '') return null;
  return (
    <>
      <dt>{name}</dt>
      <dd class={isBad ? 'bad' : ''}>{text}</dd>
    </>
  );
}

function Meter({ name, of, share, text }: { name: string; of: string; share: number | null; text: string }) {
  return (
    <div class="meter">
      <span class="name">{name}</span>
      <span>{text}</span>
      {share !== null && (
        // Browsers draw <meter> each in their own way, and over the text above it.
        // biome-ignore lint/a11y/useSemanticElements: as said
        <div
          class="bar"
          role="meter"
          aria-valuemin={0}
          aria-valuemax={100}
          aria-valuenow={percent(share)}
          aria-valuetext={text}
          aria-label={`${name} of ${of}`}
        >
          <div style={{ width: `${percent(share)}%` }} />
        </div>
      )}
    </div>
  );
}

function WaitingRow({ host, request, now }: { host: string | null; request: Request; now: number }) {
  const { position, user, count, since, job, name, note, command, stopped, latestStart } = request;
  const start = latestStart === null ? '' : `starts at ${formatSince(latestStart, now)} at the latest`;
  return (
    <tr>
      {host !== null && <td>{host}</td>}
      <td>{position}.</td>
      <th scope="row">{user}</th>
      <td>{count}</td>
      <td>
        {[sinceText(since, now), stopped ? 'suspended: skipped' : '', start].filter(Boolean).join('; ')}
      </td>
      <td>{[job, name, note].filter((each) => each !== null).join(' ')}</td>
      <td class="command">{command}</td>
    </tr>
  );
}

interface IntruderRowProps {
  host: string | null;
  intruder: Intruder;
  gpu: GPU | undefined;
}

function IntruderRow({ host, intruder, gpu }: IntruderRowProps) {
  const { name, user, pid, usedBytes } = intruder;
  return (
    <tr>
      {host !== null && <td>{host}</td>}
      <th scope="row">{gpu === undefined ? '' : labelOf(gpu)}</th>
      <td>{name ?? 'not visible'}</td>
      <td>{user ?? 'unknown'}</td>
      <td>{pid}</td>
      <td>{usedBytes === null ? '' : formatBytes(usedBytes)}</td>
    </tr>
  );
}

function JobRow({ job, now }: { job: Job; now: number }) {
  const { id, name, state, gpus, count, progress, command, submitted, started, ended } = job;
  const begin = Date.parse((state === 'waiting' ? submitted : started) ?? '');
  const end = ended === null ? now : Date.parse(ended);
  return (
    <tr>
      <th scope="row">{id ?? 'run'}</th>
      <td>{name}</td>
      <td>{state}</td>
      <td>{gpus.length > 0 ? gpus.map(labelOf).join(', ') : `(${count})`}</td>
      <td>{Number.isNaN(end - begin) ? '' : formatDuration(end - begin)}</td>
      <td class="remark">
        {progress !== null && (
          <span class="progress">
            <progress
              value={progress.done}
              max={Math.max(1, progress.total)}
              aria-label={`Tasks of job ${id}`}
            />{' '}
            {progress.done} of {progress.total} tasks{' '}
          </span>
        )}
        {remarkOf(job, now)}
      </td>
      <td class="command">{command}</td>
    </tr>
  );
}

function remarkOf({ reason, state, exitCode, until, note }: Job, now: number): string {
  return [
    reason,
    state === 'failed' && exitCode !== null ? `exit code ${exitCode}` : null,
    until === null || state !== 'running' ? null : `until ${untilText(until, now)}`,
    note,
  ]
    .filter(Boolean)
    .join('; ');
}

function jobText({ job, name, pid }: NonNullable<GPU['lease']>): string {
  return [job === undefined ? (pid === null ? '' : `PID ${pid}`) : String(job), name ?? '']
    .filter(Boolean)
    .join(' ');
}

function sinceText(since: string | null, now: number): string | null {
  const moment = formatSince(since, now);
  return moment === null || since === null ? null : `${moment} (${formatDuration(now - Date.parse(since))})`;
}

function untilText(until: string, now: number): string {
  const left = Date.parse(until) - now;
  return `${formatSince(until, now)} (${left > 0 ? `${formatDuration(left)} left` : 'time limit reached'})`;
}

const percent = (share: number) => Math.round(Math.min(1, Math.max(0, share)) * 100);

/** null: it works, or hasn't rested for long. */
function idleText({ idle, lease }: GPU, now: number): string | null {
  if (idle === null || lease === null) return null;
  if (idle.since === null) return idle.looks < MIN_IDLE_LOOKS ? null : `in the last ${idle.looks} snapshots`;
  const span = now - Math.max(Date.parse(idle.since), Date.parse(lease.since ?? '') || 0);
  return span < MIN_IDLE_MS ? null : formatDuration(span);
}

function totalsOf(snapshots: readonly MachineSnapshot[], now: number): Map<string, UserTotal> {
  const totals = userTotals(snapshots, (gpu) => idleText(gpu, now) !== null, 'unknown');
  return new Map([...totals].sort(([, a], [, b]) => b.gpus - a.gpus || b.instances - a.instances));
}

const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

function gpuTexts(gpu: GPU): (string | null | undefined)[] {
  const { lease, name, state, reason } = gpu;
  const job = lease?.job === undefined ? null : `job ${lease.job}`;
  return [
    `GPU ${labelOf(gpu)}`,
    name,
    state,
    reason,
    lease?.user,
    lease?.name,
    lease?.note,
    lease?.command,
    job,
  ];
}

function matcherOf(filter: string): (texts: readonly (string | null | undefined)[]) => boolean {
  const wanted = filter.trim().toLowerCase();
  return (texts) => wanted === '' || texts.some((text) => text?.toLowerCase().includes(wanted));
}
