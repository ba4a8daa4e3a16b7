import { bootMilliseconds, now } from '../../../platform/index.ts';
import { ChangeNotifier } from '../change-notifier.ts';
import type { Attempt, Deadline, Management, ManagerInfo } from '../queue.ts';
import { readManager } from '../records.ts';
import { type RedisConnection, serverTime } from './connection.ts';
import { newToken } from './jobs.ts';
import type { JobStore } from './store.ts';

/** How often Redis is polled while a caller waits for changes. */
const PERIOD_MS = 250;
/** How often tasks of dead workers are looked for meanwhile. */
const LOOK_MS = 1_000;

interface OpenAttempt {
  /** Whether it has a lifetime: then its lock isn't renewed. */
  lifetime: boolean;
  controller: AbortController;
  /** When the last renewal that was answered was sent, in ms since boot. */
  renewed: number;
  deadline: (Deadline & { at: number }) | null;
}

/** How long before others may have the task its command has ended, in ms, if the margin has room for it. */
const SLACK_MS = 1_000;

/**
 * Renews the locks of this process's attempts and of its leadership, and notices changes by others. Gives attempts up when Redis can't be
 * reached for too long. Costs nothing while there is nothing to do.
 */
export class LockRenewal {
  readonly #store: JobStore;
  readonly #connection: RedisConnection;
  readonly #open = new Map<string, OpenAttempt>();
  readonly #notifier: ChangeNotifier;
  #leadership: { record: string; renewed: number; onLost: () => void } | null = null;
  #busy: Promise<void> | null = null;
  #renewed = Number.NEGATIVE_INFINITY;
  #looked = Number.NEGATIVE_INFINITY;
  #version: string | null = null;
  /** Time since boot minus the monotonic clock, which stands still while the machine sleeps, in ms. */
  #slept = bootMilliseconds() - now();

  constructor(store: JobStore) {
    const { connection } = store;
    this.#store = store;
    this.#connection = connection;
    this.#notifier = new ChangeNotifier(
      Math.min(PERIOD_MS, connection.renewal / 2),
      () => void this.#tick(),
      () => this.#open.size > 0 || this.#leadership !== null,
    );
  }

  /** Time since boot in ms. The time may be behind, so that tasks are given up too early rather than too late. */
  get time(): number {
    return now() + this.#slept;
  }

  /** @param asked when the task was asked for: `time` */
  add(token: string, lifetime: boolean, asked: number): Pick<Attempt, 'signal' | 'deadline'> {
    const controller = new AbortController();
    const { margin } = this.#connection.address;
    const grace = Math.floor(Math.max(margin - SLACK_MS, margin / 2));
    const deadline = lifetime ? null : { at: asked + this.#patience, grace, onMoved: null };
    this.#open.set(token, { lifetime, controller, renewed: asked, deadline });
    this.#notifier.adjust();
    return { signal: controller.signal, deadline };
  }

  /** How long after its last renewal an attempt is given up, in ms. */
  get #patience(): number {
    return this.#connection.address.patience + this.#connection.renewal;
  }

  remove(token: string): void {
    this.#open.delete(token);
    this.#notifier.adjust();
  }

  /** Renews the leadership too. @param record as Redis has it; null: no longer @param asked as for `add` */
  lead(record: string | null, asked = 0, onLost: () => void = () => {}): void {
    this.#leadership = record === null ? null : { record, renewed: asked, onLost };
    this.#notifier.adjust();
  }

  /** See `Queue.changed`. */
  async changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void> {
    if (signal?.aborted) return;
    const change = this.#notifier.wait(milliseconds, signal, since);
    // Changes since the last call count. Without a wait, the caller wants to begin here.
    const poll = this.#tick();
    if (milliseconds <= 0) await poll;
    await change;
  }

  /** See `Queue.changeCount`. */
  get changeCount(): number {
    return this.#notifier.count;
  }

  close(): void {
    this.#open.clear();
    this.#leadership = null;
    this.#notifier.close();
  }

  #tick(): Promise<void> {
    this.#giveUp();
    this.#busy ??= this.#poll().finally(() => {
      this.#busy = null;
    });
    return this.#busy;
  }

  /** Gives up attempts that were not renewed for so long that their tasks may soon be given to others. */
  #giveUp(): void {
    const patience = this.#patience;
    this.#slept = bootMilliseconds() - now();
    const time = this.time;
    if (this.#leadership !== null && time - this.#leadership.renewed >= patience) this.#loseLeadership();
    for (const { lifetime, controller, renewed } of this.#open.values()) {
      if (lifetime || time - renewed < patience) continue;
      const seconds = Math.round((time - renewed) / 1000);
      controller.abort(
        new Error(`the queue could not be reached for ${seconds} s, and the task may be given to others`),
      );
    }
  }

  async #poll(): Promise<void> {
    if (!this.#connection.isReady) return;
    const started = this.time;
    const { client, backend } = this.#connection;
    try {
      // Whatever BullMQ does is an event, and others are published by us.
      const [last] = await client.xrevrange(backend.keys.events as string, '+', '-', 'COUNT', 1);
      const version = last?.[0] ?? '';
      const isChanged = version !== this.#version;
      const isDue = started - this.#renewed >= this.#connection.renewal;
      if (isDue || isChanged) await this.#renew(started);
      if (isDue) this.#renewed = started;
      if (started - this.#looked >= LOOK_MS) {
        this.#looked = started;
        await this.#store.look();
      }
      if (!isChanged) return;
      this.#version = version;
      this.#notifier.notify();
    } catch {
      // Next time. Callers that need the queue now meet the error themselves.
    }
  }

  async #renew(started: number): Promise<void> {
    if (this.#leadership !== null) {
      if (await isHeld(this.#connection, 'manager', this.#leadership.record))
        this.#leadership.renewed = started;
      else this.#loseLeadership();
    }
    const { backend, lock } = this.#connection;
    const tokens = [...this.#open].filter(([, { lifetime }]) => !lifetime).map(([token]) => token);
    if (tokens.length === 0) return;
    const parts = tokens.map((token) => token.split('.') as [string, string]);
    const ids = parts.map(([, id]) => id);
    const locks = parts.map(([each]) => each);
    const lost = await backend.extendLocks(ids, locks, lock);
    for (const [at, token] of tokens.entries()) {
      if (lost.includes(ids[at] as string)) await this.#lose(token);
      else this.#extend(token, started);
    }
  }

  /** Tells an attempt that its task isn't its own any longer. */
  async #lose(token: string): Promise<void> {
    const [lock, id = ''] = token.split('.');
    const job = await this.#store.get(id);
    const open = this.#open.get(token);
    if (open === undefined || open.controller.signal.aborted) return;
    const why = job?.status.attempts.find((each) => each.token === lock);
    open.controller.abort(new Error(why?.error ?? 'the queue got no heartbeat for too long'));
  }

  #extend(token: string, renewed: number): void {
    const open = this.#open.get(token);
    if (open === undefined || open.controller.signal.aborted || renewed <= open.renewed) return;
    open.renewed = renewed;
    if (open.deadline === null) return;
    open.deadline.at = renewed + this.#patience;
    open.deadline.onMoved?.(open.deadline.at);
  }

  #loseLeadership(): void {
    const { onLost } = this.#leadership ?? {};
    this.#leadership = null;
    onLost?.();
  }
}

/** A lock that isn't a job: BullMQ has none. Keeps it for another while if it is still ours; 0: releases it. */
const KEEP = `
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])`;

async function isHeld(connection: RedisConnection, name: string, value: string): Promise<boolean> {
  return (await connection.redis.eval(KEEP, 1, connection.key(name), value, connection.lock)) === 1;
}

export async function unlock(connection: RedisConnection, name: string, value: string): Promise<void> {
  await connection.redis.eval(KEEP, 1, connection.key(name), value, 0);
}

export async function tryLock(
  connection: RedisConnection,
  name: string,
  value: string,
  milliseconds: number,
): Promise<boolean> {
  const key = connection.key(name);
  if ((await connection.redis.set(key, value, 'PX', milliseconds, 'NX')) !== null) return true;
  // The lock may be ours, if an answer was lost.
  return (await connection.redis.get(key)) === value;
}

/** Elects the one process that writes the tables: see `Queue.manage`. */
export class Leadership {
  readonly #store: JobStore;
  readonly #renewal: LockRenewal;
  /** The record in Redis while this process is the leader. */
  #record: string | null = null;

  constructor(store: JobStore, renewal: LockRenewal) {
    this.#store = store;
    this.#renewal = renewal;
  }

  /** @returns null: another process is the leader */
  async take({ host, pid }: { host: string; pid: number }): Promise<Management | null> {
    if (this.#record !== null) return null;
    const { connection } = this.#store;
    // The nonce tells it from other leaders of the same process.
    const record = JSON.stringify({ host, pid, nonce: newToken() });
    const asked = this.#renewal.time;
    if (!(await tryLock(connection, 'manager', record, connection.lock))) return null;
    await this.#store.notify();
    this.#record = record;
    const lost = new AbortController();
    this.#renewal.lead(record, asked, () => {
      this.#record = null;
      lost.abort(new Error('the queue could not be reached for too long'));
    });
    return {
      lost: lost.signal,
      release: async () => {
        if (this.#record === record) await this.release();
      },
    };
  }

  async current(): Promise<ManagerInfo | null> {
    const { connection } = this.#store;
    const { redis } = connection;
    const name = connection.key('manager');
    const [text, left, now] = await Promise.all([redis.get(name), redis.pttl(name), serverTime(redis)]);
    return text === null ? null : { ...readManager(text), until: now + left };
  }

  async release(): Promise<void> {
    const record = this.#record;
    if (record === null) return;
    this.#record = null;
    this.#renewal.lead(null);
    await unlock(this.#store.connection, 'manager', record);
    await this.#store.notify();
  }
}
