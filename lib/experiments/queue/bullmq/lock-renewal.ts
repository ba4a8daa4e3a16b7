import { randomBytes } from 'node:crypto';
import { bootId, bootMilliseconds, now, pidNamespace, readProcessStat } from '../../../platform/index.ts';
import { ChangeNotifier } from '../change-notifier.ts';
import type { Attempt, Deadline, Management, ManagerInfo } from '../queue.ts';
import { readCount, readJSON, readRecord, readText } from '../records.ts';
import type { RedisConnection, RedisReply } from './connection.ts';

/** How often Redis is polled while somebody waits for changes. */
const PERIOD_MS = 250;
/** Tokens per operation. */
const BATCH = 500;

interface OpenAttempt {
  /** The id of its task. */
  task: string;
  /** Whether it has a lifetime: then its lock isn't renewed. */
  lifetime: boolean;
  /** Whether nobody else gets its task: then it isn't given up. */
  isOnce: boolean;
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
  readonly #connection: RedisConnection;
  readonly #open = new Map<string, OpenAttempt>();
  readonly #notifier: ChangeNotifier;
  #leadership: { record: string; renewed: number; onLost: () => void } | null = null;
  #busy: Promise<void> | null = null;
  #renewed = Number.NEGATIVE_INFINITY;
  #version: string | null = null;
  /** Time since boot minus the monotonic clock, which stands still while the machine sleeps, in ms. */
  #slept = bootMilliseconds() - now();

  constructor(connection: RedisConnection) {
    this.#connection = connection;
    this.#notifier = new ChangeNotifier(
      Math.min(PERIOD_MS, connection.renewal / 2),
      () => void this.#tick(),
      () => this.#open.size > 0 || this.#leadership !== null,
    );
  }

  /** Time since boot in ms. It may be behind, so that tasks are given up too early rather than too late. */
  get time(): number {
    return now() + this.#slept;
  }

  /** @param asked when the task was asked for: `time` */
  add(
    token: string,
    task: string,
    { lifetime, isOnce }: { lifetime: boolean; isOnce: boolean },
    asked: number,
  ): Pick<Attempt, 'signal' | 'deadline'> {
    const controller = new AbortController();
    const { margin } = this.#connection.address;
    const grace = Math.floor(Math.max(margin - SLACK_MS, margin / 2));
    const deadline = lifetime || isOnce ? null : { at: asked + this.#patience, grace, onMoved: null };
    this.#open.set(token, { task, lifetime, isOnce, controller, renewed: asked, deadline });
    this.#notifier.adjust();
    return { signal: controller.signal, deadline };
  }

  /** How long after its last renewal an attempt is given up, in ms. */
  get #patience(): number {
    return this.#connection.address.patience + this.#connection.renewal;
  }

  /** The id of the task of an attempt of this process whose lock is renewed. */
  taskOf(token: string): string | null {
    const open = this.#open.get(token);
    return open === undefined || open.lifetime ? null : open.task;
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
    for (const { lifetime, isOnce, controller, renewed } of this.#open.values()) {
      if (lifetime || isOnce || time - renewed < patience) continue;
      const seconds = Math.round((time - renewed) / 1000);
      controller.abort(
        new Error(`the queue could not be reached for ${seconds} s, and the task may be given to others`),
      );
    }
  }

  async #poll(): Promise<void> {
    if (!this.#connection.isReady) return;
    const started = this.time;
    const renew = started - this.#renewed >= this.#connection.renewal;
    try {
      const tokens = [...this.#open.keys()];
      for (let from = 0; from === 0 || from < tokens.length; from += BATCH) {
        const batch = tokens.slice(from, from + BATCH);
        const [version, leads, over] = await this.#connection.call<[string, number, RedisReply[]]>(
          'tick',
          renew ? 1 : 0,
          this.#leadership?.record ?? '',
          ...batch,
        );
        this.#update(batch, renew ? started : null, over as string[]);
        if (leads === 0) this.#loseLeadership();
        else if (renew && this.#leadership !== null) this.#leadership.renewed = started;
        if (version === this.#version) continue;
        this.#version = version;
        this.#notifier.notify();
      }
      if (renew) this.#renewed = started;
    } catch {
      // Next time. Callers that need the queue now meet the error themselves.
    }
  }

  #update(tokens: readonly string[], renewed: number | null, over: readonly string[]): void {
    for (let index = 0; index < over.length; index += 2) {
      const controller = this.#open.get(over[index] as string)?.controller;
      if (controller !== undefined && !controller.signal.aborted)
        controller.abort(new Error(over[index + 1]));
    }
    if (renewed === null) return;
    for (const token of tokens) {
      const open = this.#open.get(token);
      if (open === undefined || open.controller.signal.aborted || renewed <= open.renewed) continue;
      open.renewed = renewed;
      if (open.deadline === null) continue;
      open.deadline.at = renewed + this.#patience;
      open.deadline.onMoved?.(open.deadline.at);
    }
  }

  #loseLeadership(): void {
    const { onLost } = this.#leadership ?? {};
    this.#leadership = null;
    onLost?.();
  }
}

/** Elects the one process that writes the tables: see `Queue.manage`. */
export class Leadership {
  readonly #connection: RedisConnection;
  readonly #renewal: LockRenewal;
  /** The record in Redis while this process is the leader. */
  #record: string | null = null;

  constructor(connection: RedisConnection, renewal: LockRenewal) {
    this.#connection = connection;
    this.#renewal = renewal;
  }

  /** @returns null: another process is the leader */
  async take({ host, pid }: { host: string; pid: number }): Promise<Management | null> {
    if (this.#record !== null) return null;
    const record = leaderRecord({ host, pid });
    const before = await this.#connection.call<[string, string] | null>('manager');
    const dead = before !== null && isDead(before[0]) ? before[0] : '';
    const asked = this.#renewal.time;
    if ((await this.#connection.call('manage', record, dead)) !== 1) return null;
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
    const answer = await this.#connection.call<[string, string] | null>('manager');
    if (answer === null || isDead(answer[0])) return null;
    const { host, pid } = readRecord(answer[0]);
    return { host: readText(host), pid: readCount(pid), until: Number(answer[1]) };
  }

  async release(): Promise<void> {
    const record = this.#record;
    if (record === null) return;
    this.#record = null;
    this.#renewal.lead(null);
    await this.#connection.call('release', record);
  }
}

/** The leader as Redis has it. */
interface LeaderRecord {
  host: string;
  pid: number;
  /** Tells it from other leaders of the same process. */
  of: string;
  /** The process, for others on its machine. Absent: written by an older version. */
  process?: { boot: string; namespace: string; pid: number; start: string };
}

function leaderRecord({ host, pid }: { host: string; pid: number }): string {
  const record: LeaderRecord = {
    host,
    pid,
    of: randomBytes(8).toString('hex'),
    process: {
      boot: bootId(),
      namespace: pidNamespace() ?? '',
      pid: process.pid,
      start: startOf(process.pid),
    },
  };
  return JSON.stringify(record);
}

/**
 * Whether the leader's process has certainly ended: then nobody needs to wait until its lock expires. Known only of processes whose PIDs
 * mean the same here: of this boot of this machine, in this namespace.
 */
function isDead(text: string): boolean {
  const record = readJSON(text);
  // A process whose record can't be read doesn't renew it.
  if (typeof record !== 'object' || record === null) return true;
  const { process: its } = record as LeaderRecord;
  if (typeof its !== 'object' || its === null || !Number.isSafeInteger(its.pid)) return false;
  if (its.boot === '' || its.namespace === '') return false;
  if (its.boot !== bootId() || its.namespace !== (pidNamespace() ?? '')) return false;
  try {
    process.kill(its.pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ESRCH';
  }
  // Its PID may be another process's by now.
  const start = startOf(its.pid);
  return start !== '' && its.start !== '' && start !== its.start;
}

/** When a process began, in ticks since boot; '' where that can't be told. */
function startOf(pid: number): string {
  const stat = readProcessStat(pid);
  // A zombie has ended, but its parent doesn't know yet.
  return stat?.state === 'Z' ? 'ended' : (stat?.startTicks ?? '');
}

/** The Lua of renewals, and of locks that expired. */
export const RENEWAL = `
-- Answers the version, whether the manager is still this one, and attempts that are over, with the reason.
function operations.tick(renew, manager, ...)
  local over = {}
  for _, token in ipairs({...}) do
    local attempt = attemptOf(token)
    if not attempt then
      over[#over + 1] = token
      over[#over + 1] = 'the queue no longer knows this attempt'
    else
      local alive = true
      if renew == '1' and attempt.once then
        alive = lockOf(attempt.task) == token
        rcall('HSET', P .. 'attempt:' .. token, 'seen', NOW)
      elseif renew == '1' and not attempt.deadline then
        alive = bull('extendLock', {id = attempt.task, token = token}) == 1
      end
      if attempt.outcome then
        over[#over + 1] = token
        over[#over + 1] = attempt.error or attempt.outcome
      elseif not alive then
        over[#over + 1] = token
        over[#over + 1] = 'the queue got no heartbeat for too long'
      end
    end
  end
  local manages = 1
  if manager ~= '' and renew == '1' then
    -- Where nobody manages, somebody has removed it: it may be another queue by now.
    if rcall('GET', P .. 'manager') == manager then
      rcall('SET', P .. 'manager', manager, 'PX', LOCK)
    else
      manages = 0
    end
  end
  if renew == '1' then endOverdue() end
  -- As often as somebody looks, BullMQ has a limit of its own: tasks of the dead shall not wait for the next sign of life.
  checkStalled()
  local version = rcall('HMGET', P .. 'settings', 'version', 'sequence')
  -- What has started is active, unless it has ended, which is seen by the others.
  return {(version[1] or '') .. ' ' .. (version[2] or '') .. ' ' .. count('active'), manages, over}
end

-- For those who take nothing. A worker that had no Redis for long may still say itself what has become of its task: it gets as much
-- time again for that, unless somebody takes the task.
function operations.endLost()
  endOverdue()
  for _, id in ipairs(listed('active', 0, -1)) do
    local token = (get(id, 'attempt'))
    if not token then
      endLost(id, token, '', token)
    elseif lockOf(id) ~= token then
      local fields = redis.pcall('HMGET', P .. 'attempt:' .. token, 'deadline', 'silent')
      local deadline, silent = tonumber(fields[1]), tonumber(fields[2])
      if fields.err then
        endLost(id, token, '', token)
      elseif not deadline and not silent then
        rcall('HSET', P .. 'attempt:' .. token, 'silent', NOW)
      elseif not deadline and NOW - silent > tonumber(LOCK) then
        endLost(id, token, 'ended silently, or could not reach the queue for too long', token)
      end
    end
  end
  return 1
end
`;
