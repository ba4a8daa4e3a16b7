// Moves jobs between machines while they wait: a process of the user on the machine of the submission. The mover hears from each host
// over one connection, and asks further ones only to move. Where a job starts is decided on the hosts, by the words of its places, so that
// neither a crash of this process nor a lost answer runs a job twice. docs/decisions/058-moving-jobs.md
import type { Host } from '../config/index.ts';
import { type JobHooks, type PlaceState, STARTED } from '../jobs/index.ts';
import { sleep, TIMEOUTS } from '../platform/index.ts';
import type { Snapshot } from '../shapes/index.ts';
import { byExpectedWait, gpusFor, wantedOf } from './expected-wait.ts';
import { commandOnHost, Logins, submitOnHost, watchHosts } from './fleet.ts';
import type { HostFailure } from './host-failure.ts';
import { parseRecords } from './host-records.ts';
import {
  CANCELLED,
  cancelFile,
  directoryOn,
  LOST,
  type MovingJob,
  type MovingJobs,
  type Place,
} from './moving-job.ts';

const TICK_MS = 300;
const FEED_INTERVAL_MS = 1_000;
const FEED = ['top', '--json', `--interval=${FEED_INTERVAL_MS}ms`];
/** Silence after which a host counts as failed, and its last answer as outdated. */
const QUIET_MS = 10_000;
/** How long to wait for a host's first answer before a job joins the queue of another one. */
const PATIENCE_MS = 3_000;
const TIMEOUT_MS = 15_000;
/** Between two tries with a host that has refused, in ms: each time twice as long. */
const MAX_PAUSE_MS = 30_000;
/** How long a place that was left without an answer is remembered after the end of the moves, in ms. */
const LEFT_MS = 86_400_000;

/** Causes for which a host can never serve this job. */
const NEVER = new Set([
  ...['ERR_INVALID_ARGUMENT', 'ERR_NOT_PERMITTED'],
  ...['ERR_HOST_DIRECTORY', 'ERR_HOST_VERSION', 'ERR_HOST_NOT_INSTALLED'],
]);

class Feed {
  readonly #abort = new AbortController();
  #snapshot: Snapshot | null = null;
  #at = 0;
  /** Why it doesn't answer; null: it does, or that isn't known yet. */
  failure: HostFailure | null = null;
  #isNew = true;
  readonly #since = performance.now();
  /** GPUs for jobs that are on their way. */
  reserved = 0;

  constructor(host: Host) {
    void watchHosts(
      [host],
      'machines',
      FEED,
      QUIET_MS,
      ({ records, error }) => {
        this.#isNew = false;
        this.failure = error;
        this.#snapshot = records?.at(-1) ?? null;
        this.#at = performance.now();
      },
      this.#abort.signal,
    );
  }

  /** The machine as it is; null: it doesn't answer. */
  get snapshot(): Snapshot | null {
    return performance.now() - this.#at < QUIET_MS ? this.#snapshot : null;
  }

  /** Whether it hasn't even failed to answer yet. */
  get isAwaited(): boolean {
    return this.#isNew && performance.now() - this.#since < PATIENCE_MS;
  }

  end(): void {
    this.#abort.abort();
  }
}

function newKey(): string {
  return process.getBuiltinModule('node:crypto').randomBytes(16).toString('hex');
}

function placeAt(host: string): Place {
  return { host, key: newKey(), id: null, boot: null, uid: null };
}

export class Mover {
  readonly #jobs: MovingJobs;
  readonly #hostOf: (name: string) => Host;
  readonly #follow: JobHooks['followElsewhere'];
  /** Jobs that wait for others. */
  readonly #following = new Set<number>();
  readonly #feeds = new Map<string, Feed>();
  /** A hundred jobs ask a host one after the other: sshd drops connections beyond ten. */
  readonly #logins = new Map<string, Logins>();
  /** Jobs by number: this process alone changes their files. */
  readonly #known = new Map<number, MovingJob>();
  #names: ReadonlySet<string> = new Set();
  readonly #busy = new Set<number>();
  /** Why hosts gave no answer about places, by their keys. */
  readonly #failures = new Map<string, string>();
  /** When a host may be asked again, for a job. */
  readonly #pauses = new Map<string, { until: number; ms: number }>();

  constructor(jobs: MovingJobs, hostOf: (name: string) => Host, follow: JobHooks['followElsewhere']) {
    this.#jobs = jobs;
    this.#follow = follow;
    this.#hostOf = hostOf;
  }

  /** Returns when no job is left to move, or another process moves them. */
  async run(): Promise<void> {
    for (;;) {
      if (!this.#jobs.appointMover(process.pid)) break;
      const jobs = this.#unsettled();
      if (jobs.length === 0 && this.#busy.size === 0) {
        this.#jobs.retire();
        // A job may have come meanwhile, whose submitter has seen this process.
        if (this.#unsettled().length === 0) break;
        continue;
      }
      const hostsOf = ({ hosts, at, after }: MovingJob) =>
        after.length > 0 ? [] : [...hosts, ...(at === null ? [] : [at.host])];
      this.#listen(new Set(jobs.flatMap(hostsOf)));
      for (const job of jobs) {
        if (this.#busy.has(job.id)) continue;
        this.#busy.add(job.id);
        void this.#advance(job).finally(() => this.#busy.delete(job.id));
      }
      await sleep(TICK_MS);
    }
    for (const feed of this.#feeds.values()) feed.end();
  }

  #unsettled(): MovingJob[] {
    const names = this.#jobs.names();
    this.#names = new Set(names);
    for (const id of this.#jobs.ids(names)) {
      const job = this.#known.has(id) ? null : this.#jobs.read(id);
      if (job !== null) this.#known.set(id, job);
    }
    return [...this.#known.values()].filter(({ step, left }) => step !== 'settled' || left.length > 0);
  }

  #isCancelled({ id }: MovingJob): boolean {
    return this.#names.has(cancelFile(id));
  }

  #listen(hosts: ReadonlySet<string>): void {
    for (const host of hosts) if (!this.#feeds.has(host)) this.#feeds.set(host, new Feed(this.#hostOf(host)));
    for (const [host, feed] of this.#feeds) {
      if (hosts.has(host)) continue;
      feed.end();
      this.#feeds.delete(host);
    }
  }

  async #advance(job: MovingJob): Promise<void> {
    if (job.left.length > 0) await this.#clearLeft(job);
    const isCancelled = this.#isCancelled(job);
    if (job.step === 'submitting') await this.#submit(job, isCancelled);
    else if (job.step === 'queued') await (isCancelled ? this.#giveUp(job, job.at) : this.#look(job));
    // The answer of the new host has not come: without a confirmation nothing starts there.
    else if (job.step === 'holding') this.#stay(job);
    else if (job.step === 'cancelling') await this.#cancel(job);
    else if (job.step === 'confirming') await this.#confirm(job);
  }

  #write(job: MovingJob): MovingJob {
    this.#jobs.write(job);
    this.#known.set(job.id, job);
    return job;
  }

  #note(job: MovingJob, note: string | null): void {
    if (job.note !== note) this.#write({ ...job, note });
  }

  #settle(job: MovingJob, at: Place | null, note: string | null): void {
    this.#jobs.forgetCancel(job.id);
    this.#write({ ...job, step: 'settled', settled: Date.now(), at, next: null, note });
  }

  /** Puts it into a queue. */
  async #submit(job: MovingJob, isCancelled: boolean): Promise<void> {
    if (job.next !== null) return this.#findSubmitted(job, job.next);
    if (isCancelled) return this.#settle(job, null, CANCELLED);
    if (job.after.length > 0) return this.#followOthers(job);
    const host = this.#bestQueue(job);
    if (host === null) {
      if (job.hosts.length === 0) return this.#settle(job, null, job.note ?? 'no host can serve it');
      const failures = job.hosts.flatMap((each) => {
        const failure = this.#feeds.get(each)?.failure;
        return failure == null ? [] : [`${each}: ${failure.message}`];
      });
      if (failures.length === job.hosts.length) this.#note(job, `no host answers: ${failures.join('; ')}`);
      return;
    }
    const next = placeAt(host);
    const moving = this.#write({ ...job, next });
    const remainingMs = job.giveUpAt === null ? null : Math.max(1, job.giveUpAt - Date.now());
    const answer = await this.#ask(
      moving,
      next,
      remainingMs === null ? ['--wait'] : [`--wait=${Math.ceil(remainingMs)}ms`],
    );
    if (answer.error === null)
      this.#write({ ...moving, step: 'queued', at: { ...next, id: answer.id }, next: null, note: null });
    else if (answer.isCertain) this.#refused({ ...moving, next: null }, host, answer.error);
    else this.#note(moving, `${host}: ${answer.error.message}`);
  }

  /** Lets it join a queue once the jobs that it follows have ended. */
  #followOthers({ id, after }: MovingJob): void {
    if (this.#following.has(id)) return;
    this.#following.add(id);
    const present = () => {
      const job = this.#known.get(id);
      return job?.step === 'submitting' ? job : null; // otherwise it was cancelled meanwhile
    };
    const onLost = (reason: string | null) => {
      const job = present();
      if (job !== null) this.#note(job, reason);
    };
    void this.#follow(after, onLost).then((obstacle) => {
      const job = present();
      if (job === null) return;
      if (obstacle !== null) return this.#settle(job, null, obstacle);
      const giveUpAt = job.giveUpAt === null ? null : job.giveUpAt + Date.now() - job.submitted;
      this.#write({ ...job, after: [], giveUpAt, note: null });
    });
  }

  /** The host where it is expected to start first; null: none answers. Ties are decided by chance. */
  #bestQueue(job: MovingJob): string | null {
    const open = job.hosts.filter((host) => !this.#isPaused(job, host));
    if (open.some((host) => this.#feeds.get(host)?.isAwaited !== false)) return null;
    const known = open.flatMap((host) => {
      const snapshot = this.#feeds.get(host)?.snapshot;
      return snapshot == null ? [] : [{ host, snapshot: this.#withComing(host, snapshot) }];
    });
    return byExpectedWait(known, wantedOf(job.words, job.count))[0] ?? null;
  }

  /** A machine with the jobs in its queue that it hasn't shown yet: all parts of an array are submitted at once. */
  #withComing(host: string, snapshot: Snapshot) {
    const shown = new Set(snapshot.queue.map(({ job }) => job));
    const coming = [...this.#known.values()].filter(
      ({ step, at, next }) =>
        (step === 'submitting' && next?.host === host) ||
        (step === 'queued' && at?.host === host && !shown.has(at.id)),
    );
    const requests = coming.map(({ count }) => ({ count, class: 'normal' as const }));
    return { ...snapshot, queue: [...snapshot.queue, ...requests] };
  }

  /** Whether a submission that got no answer has arrived. */
  async #findSubmitted(job: MovingJob, next: Place): Promise<void> {
    const found = await this.#ask1(job, next, ['find']);
    if (found === null) return;
    if (found.id !== null) {
      const { id, boot, uid } = found;
      this.#write({ ...job, step: 'queued', at: { ...next, id, boot, uid }, next: null, note: null });
      return;
    }
    // The submission may be on its way still.
    const settled = await this.#ask1(job, next, ['cancel', newKey()]);
    if (settled === null) return;
    if (settled.decision === STARTED) this.#settle(job, { ...next, id: settled.id }, null);
    else this.#write({ ...job, next: null });
  }

  /** Looks how it stands in its queue, and for a host that would serve it now. */
  async #look(job: MovingJob): Promise<void> {
    const at = job.at as Place;
    const feed = this.#feeds.get(at.host);
    const snapshot = feed?.snapshot ?? null;
    // Each user of a host has jobs with these numbers.
    const isWaiting =
      snapshot?.queue.some(({ job: id, uid }) => id !== null && id === at.id && uid === at.uid) === true;
    const isUnsure = !isWaiting || at.boot === null;
    if (snapshot !== null && isUnsure && !this.#isPaused(job, at.host)) {
      const found = await this.#ask1(job, at, ['find']);
      this.#pause(job, at.host, true);
      if (found !== null) return this.#judge(job, at, found);
    }
    const silent = `${at.host} doesn't answer: `;
    const unanswered = isUnsure ? this.#failures.get(at.key) : undefined;
    const cause = snapshot === null ? feed?.failure?.message : unanswered;
    if (cause !== undefined) return this.#note(job, `${silent}${cause}`);
    if (job.note?.startsWith(silent)) return this.#note(job, null);
    // A new place is held for a short time only: the old one must answer.
    if (!isWaiting || this.#isPaused(job, at.key)) return;
    const host = this.#freeHost(job, at.host);
    if (host !== null) await this.#hold(job, host);
  }

  #judge(job: MovingJob, at: Place, { id, boot, uid, state, decision, isOver }: PlaceState): void {
    const isRebooted = at.boot !== null && boot !== at.boot;
    if (decision === STARTED) this.#settle(job, { ...at, id }, null);
    else if (isOver || (decision !== null && id !== null)) this.#settle(job, at, `ended on ${at.host}`);
    else if (state === 'lost' || (id === null && isRebooted)) this.#requeue(job, at);
    else if (id === null) this.#settle(job, null, `${LOST}: ${at.host} knows no such job any more`);
    else if (at.boot === null) this.#write({ ...job, at: { ...at, boot, uid } });
  }

  /** The machine was restarted, or the job's process killed, while it waited. */
  #requeue(job: MovingJob, at: Place): void {
    this.#write({
      ...job,
      step: 'cancelling',
      next: placeAt(''),
      note: `${at.host} has lost it: it joins another queue`,
    });
  }

  /** A host with enough free GPUs; null: there is none. */
  #freeHost(job: MovingJob, present: string): string | null {
    const wanted = wantedOf(job.words, job.count);
    const isOpen = (state: string) => state === 'free' || (wanted.mayShare && state === 'shared');
    const free = job.hosts.flatMap((host) => {
      const feed = this.#feeds.get(host);
      const snapshot = feed?.snapshot ?? null;
      if (feed === undefined || snapshot === null || host === present || this.#isPaused(job, host)) return [];
      const left = gpusFor(wanted, snapshot.gpus).filter(({ state }) => isOpen(state)).length - feed.reserved;
      return left >= job.count ? [{ host, left }] : [];
    });
    return free.sort((a, b) => b.left - a.left)[0]?.host ?? null;
  }

  async #hold(job: MovingJob, host: string): Promise<void> {
    const next = placeAt(host);
    const holding = this.#write({ ...job, step: 'holding', next, note: null });
    const feed = this.#feeds.get(host);
    if (feed !== undefined) feed.reserved += job.count;
    try {
      const answer = await this.#ask(holding, next, ['--no-wait'], ':held');
      if (answer.error === null)
        return await this.#cancel(
          this.#write({ ...holding, step: 'cancelling', next: { ...next, id: answer.id } }),
        );
      if (answer.isCertain) return this.#refused({ ...job, next: null }, host, answer.error);
      this.#pause(job, host);
      this.#stay(holding);
    } finally {
      if (feed !== undefined) feed.reserved -= job.count;
    }
  }

  /** Leaves it where it waits, and gives up the new place. */
  #stay(job: MovingJob): void {
    const abandoned = job.next === null || job.next.host === '' ? [] : [job.next];
    this.#write({ ...job, step: 'queued', next: null, left: [...job.left, ...abandoned], note: null });
  }

  async #cancel(job: MovingJob): Promise<void> {
    const [at, next] = [job.at as Place, job.next as Place];
    const state = await this.#ask1(job, at, ['cancel', next.key]);
    if (state === null) return this.#note(job, `${at.host} doesn't answer, so it stays there`);
    if (state.decision !== `cancelled for ${next.key}`) return this.#stay(job);
    if (next.host === '') this.#write({ ...job, step: 'submitting', at: null, next: null });
    else await this.#confirm(this.#write({ ...job, step: 'confirming' }));
  }

  async #confirm(job: MovingJob): Promise<void> {
    const next = job.next as Place;
    if (this.#isCancelled(job)) return this.#giveUp(job, next);
    const state = await this.#ask1(job, next, ['confirm']);
    if (state === null) return this.#note(job, `lost in the move until ${next.host} answers`);
    if (state.decision === STARTED) this.#settle(job, { ...next, id: state.id, boot: state.boot }, null);
    else this.#write({ ...job, step: 'submitting', at: null, next: null });
  }

  /** Called when the user has cancelled it. */
  async #giveUp(job: MovingJob, place: Place | null): Promise<void> {
    if (place === null) return this.#settle(job, null, CANCELLED);
    const state = await this.#ask1(job, place, ['cancel', newKey()]);
    if (state === null) {
      const isGone = Date.now() - this.#jobs.cancelledAt(job.id) > LEFT_MS;
      if (isGone) return this.#settle(job, null, CANCELLED);
      return this.#note(job, `${place.host} doesn't answer, so it isn't cancelled there yet`);
    }
    this.#settle(job, { ...place, id: state.id }, state.decision === STARTED ? null : CANCELLED);
  }

  /** Cancels it where it was left without an answer. */
  async #clearLeft(job: MovingJob): Promise<void> {
    for (const place of job.left) {
      const state = await this.#ask1(job, place, ['cancel', newKey()]);
      const isOld = job.settled !== null && Date.now() - job.settled > LEFT_MS;
      if (state === null && !isOld) continue;
      job.left = job.left.filter(({ key }) => key !== place.key);
      if (state?.decision === STARTED) job.note = `it also runs as ${place.host}:${state.id}`;
      this.#write(job);
    }
  }

  #refused(job: MovingJob, host: string, { code, message }: HostFailure): void {
    this.#pause(job, host);
    const hosts = NEVER.has(code) ? job.hosts.filter((each) => each !== host) : job.hosts;
    // Taken GPUs are the usual case.
    const note = code === 'ERR_GPU_UNAVAILABLE' ? null : `${host}: ${message}`;
    this.#write({ ...job, hosts, note });
  }

  /** Submits the job at a place. */
  async #ask(job: MovingJob, place: Place, wait: readonly string[], held = '') {
    const words = ['submit', `--move=${place.key}${held}`, ...wait, ...job.words];
    const submit = () =>
      submitOnHost(
        this.#hostOf(place.host),
        words,
        directoryOn(place.host, job),
        TIMEOUTS.hold,
        job.environment,
      );
    return this.#inTurn(place.host, submit);
  }

  /** Asks a host about one of its places. null: no answer, and for a while it isn't asked about this place again */
  async #ask1(job: MovingJob, place: Place, words: readonly string[]): Promise<PlaceState | null> {
    if (this.#isPaused(job, place.key)) return null;
    const all = ['mover', place.key, ...words];
    const answer = await this.#inTurn(place.host, () =>
      commandOnHost(this.#hostOf(place.host), all, TIMEOUT_MS),
    );
    const found = answer.error === null ? parseRecords('places', answer.output) : null;
    if (Array.isArray(found) && found[0] !== undefined) {
      this.#pauses.delete(`${job.id} ${place.key}`);
      this.#failures.delete(place.key);
      return found[0];
    }
    this.#failures.set(place.key, answer.error?.message ?? 'its answer makes no sense');
    this.#pause(job, place.key);
    return null;
  }

  async #inTurn<T>(host: string, ask: () => Promise<T>): Promise<T> {
    const logins = this.#logins.get(host) ?? new Logins(TIMEOUTS.hold);
    this.#logins.set(host, logins);
    const end = await logins.begin();
    return ask().finally(end);
  }

  /** @param what a host, or the key of a place */
  #isPaused({ id }: MovingJob, what: string): boolean {
    return performance.now() < (this.#pauses.get(`${id} ${what}`)?.until ?? 0);
  }

  /** @param isShort each time as long */
  #pause({ id }: MovingJob, what: string, isShort = false): void {
    const key = `${id} ${what}`;
    const ms = isShort
      ? TIMEOUTS.refusal
      : Math.max(TIMEOUTS.refusal, Math.min(2 * (this.#pauses.get(key)?.ms ?? 0), MAX_PAUSE_MS));
    this.#pauses.set(key, { until: performance.now() + ms, ms });
  }
}
