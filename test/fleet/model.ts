// A model of hosts whose waiting jobs move, beside one queue for all: seconds in place of processes. Order and choice of a queue are the
// product's own functions.

import { inOrder, type Tag, tagFor } from '../../lib/claims/rules/order.ts';
import { expectedWait } from '../../lib/fleet/expected-wait.ts';
import type { Random } from '../support/random.ts';

/** Between the moment at which GPUs come free elsewhere and the start of a job that moves there: news, and three questions. */
const NEWS_S = 1;
const MOVE_S = 3;

export interface ModelJob {
  user: number;
  gpus: number;
  seconds: number;
  arrival: number;
}

interface Waiting extends ModelJob {
  id: number;
  tag: Tag;
}

interface Host {
  /** When each GPU is free. */
  until: number[];
  queue: Waiting[];
  /** Since when it has GPUs that a job waiting elsewhere could use. */
  idleSince: number | null;
}

export interface Outcome {
  /** When the last job ended, and the mean time from arrival to end, in s. */
  end: number;
  turnaround: number;
  /** The longest time for which GPUs stood idle that a waiting job could have had. */
  idle: number;
}

const free = ({ until }: Host, now: number) => until.filter((time) => time <= now).length;

function take(host: Host, { gpus, seconds }: ModelJob, now: number, delay = 0): number {
  host.until.sort((a, b) => a - b).fill(now + delay + seconds, 0, gpus);
  return now + delay + seconds;
}

function join(job: ModelJob, id: number, queue: readonly Waiting[], now: number): Waiting {
  // Granted turns are left out: they are the same for both.
  const joining = { class: 'normal', uid: job.user, size: job.gpus, hours: job.seconds / 3_600 } as const;
  const tags = queue.map(({ tag }) => tag);
  return { ...job, id, tag: tagFor(joining, tags, new Map(), now * 1_000, 'fair') };
}

function sorted(queue: readonly Waiting[]): Waiting[] {
  const places = queue.map(({ id, tag }) => ({ slot: id, tag }));
  return inOrder(places).map((slot) => queue.find(({ id }) => id === slot) as Waiting);
}

/** @param sizes how many GPUs each host has @param isCentral one queue for all hosts, in place of one each with moves */
export function simulate(
  jobs: readonly ModelJob[],
  sizes: readonly number[],
  isCentral: boolean,
  random: Random,
): Outcome {
  const hosts: Host[] = sizes.map((size) => ({ until: Array(size).fill(0), queue: [], idleSince: null }));
  const central: Waiting[] = [];
  const ends: number[] = [];
  let idle = 0;
  const started = (job: Waiting, end: number) => {
    ends[job.id] = end;
  };
  for (let now = 0; Object.keys(ends).length < jobs.length; now++) {
    for (const [id, job] of jobs.entries()) {
      if (job.arrival !== now) continue;
      if (isCentral) central.push(join(job, id, central, now));
      else {
        const waits = hosts.map((host) => ({
          host,
          wait: expectedWait(loadOf(host, now), job.gpus, now * 1_000),
          chance: random.float(),
        }));
        const [best] = waits.sort((a, b) => a.wait - b.wait || a.chance - b.chance);
        best?.host.queue.push(join(job, id, best.host.queue, now));
      }
    }
    if (isCentral) serveCentral(central, hosts, now, started);
    else {
      for (const host of hosts) serve(host, now, started);
      for (const host of hosts) idle = Math.max(idle, move(host, hosts, now, started));
    }
  }
  const turnaround = ends.reduce((sum, end, i) => sum + end - (jobs[i] as ModelJob).arrival, 0) / jobs.length;
  return { end: Math.max(...ends), turnaround, idle };
}

function loadOf({ until, queue }: Host, now: number) {
  const gpus = until.map((time) => ({ state: time <= now ? 'free' : 'leased', until: null }));
  return { gpus, queue: sorted(queue).map(({ gpus: count }) => count) };
}

type Started = (job: Waiting, end: number) => void;

/** The first request that must wait keeps all GPUs of its host. */
function serve(host: Host, now: number, started: Started): void {
  for (const job of sorted(host.queue)) {
    if (free(host, now) < job.gpus) return;
    host.queue.splice(host.queue.indexOf(job), 1);
    started(job, take(host, job, now));
  }
}

/** A request that must wait keeps the GPUs of the host where it starts first. */
function serveCentral(queue: Waiting[], hosts: readonly Host[], now: number, started: Started): void {
  const open = new Set(hosts);
  for (const job of sorted(queue)) {
    const host = [...open].find((each) => free(each, now) >= job.gpus);
    if (host !== undefined) {
      queue.splice(queue.indexOf(job), 1);
      started(job, take(host, job, now));
      continue;
    }
    const starts = [...open].map((each) => ({
      each,
      at: [...each.until].sort((a, b) => a - b)[job.gpus - 1] ?? Infinity,
    }));
    const [first] = starts.sort((a, b) => a.at - b.at);
    if (first === undefined) return;
    open.delete(first.each);
  }
}

/** Moves jobs here that wait elsewhere. @returns how long GPUs have been idle that one of them could have had */
function move(host: Host, hosts: readonly Host[], now: number, started: Started): number {
  const others = hosts.filter((each) => each !== host);
  const movable = () =>
    host.queue.length > 0
      ? undefined
      : others
          .flatMap(({ queue }) => queue)
          .sort((a, b) => a.id - b.id)
          .find((job) => job.gpus <= free(host, now));
  if (movable() === undefined) {
    host.idleSince = null;
    return 0;
  }
  host.idleSince ??= now;
  const idle = now - host.idleSince;
  if (idle < NEWS_S) return idle;
  for (let job = movable(); job !== undefined; job = movable()) {
    const from = others.find(({ queue }) => queue.includes(job as Waiting)) as Host;
    from.queue.splice(from.queue.indexOf(job), 1);
    started(job, take(host, job, now, MOVE_S));
  }
  host.idleSince = null;
  return idle + MOVE_S;
}
