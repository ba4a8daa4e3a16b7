import { bootMilliseconds, now } from '../../../platform/index.ts';
import { Lookout } from '../change-notifier.ts';
import type { Answer, Connection } from './connection.ts';

/** How often is looked for changes while somebody wants to know, in ms. */
const PERIOD = 250;
/** Tokens per operation. */
const PORTION = 500;

interface Open {
  /** Id of its task. */
  task: string;
  /** No sign of life is needed. */
  lifetime: boolean;
  controller: AbortController;
  /** When the last sign of life was sent that was heard, in ms since boot. */
  renewed: number;
}

/**
 * Gives signs of life for the attempts of this process, and for the manager; notices what others do, and when the queue can't be
 * reached for too long. Costs nothing while there is nothing to do.
 */
export class Leases {
  readonly #connection: Connection;
  readonly #open = new Map<string, Open>();
  readonly #lookout: Lookout;
  #manager: { who: string; renewed: number; onLost: () => void } | null = null;
  #busy: Promise<void> | null = null;
  #renewed = Number.NEGATIVE_INFINITY;
  #version: string | null = null;
  /** How much more time has passed since boot than the clock knows, which stands still while the machine sleeps, in ms. */
  #slept = bootMilliseconds() - now();

  constructor(connection: Connection) {
    this.#connection = connection;
    this.#lookout = new Lookout(
      Math.min(PERIOD, connection.renewal / 2),
      () => void this.#tick(),
      () => this.#open.size > 0 || this.#manager !== null,
    );
  }

  /** In ms since boot, or earlier: then tasks are given up earlier. */
  get time(): number {
    return now() + this.#slept;
  }

  /** @param asked when the task was asked for: `time` */
  add(token: string, task: string, lifetime: boolean, asked: number): AbortSignal {
    const controller = new AbortController();
    this.#open.set(token, { task, lifetime, controller, renewed: asked });
    this.#lookout.adjust();
    return controller.signal;
  }

  /** Id of the task of an attempt of this process that gives signs of life. */
  taskOf(token: string): string | null {
    const open = this.#open.get(token);
    return open === undefined || open.lifetime ? null : open.task;
  }

  remove(token: string): void {
    this.#open.delete(token);
    this.#lookout.adjust();
  }

  /** @param who as Redis has it; null: nobody any longer @param asked as for `add` */
  manage(who: string | null, asked = 0, onLost: () => void = () => {}): void {
    this.#manager = who === null ? null : { who, renewed: asked, onLost };
    this.#lookout.adjust();
  }

  /** See `Queue.changed`. */
  async changed(milliseconds: number, signal?: AbortSignal, since?: number): Promise<void> {
    if (signal?.aborted) return;
    const change = this.#lookout.wait(milliseconds, signal, since);
    // What has happened since the last call counts; who doesn't wait wants to begin here.
    const look = this.#tick();
    if (milliseconds <= 0) await look;
    await change;
  }

  /** See `Queue.changeCount`. */
  get changeCount(): number {
    return this.#lookout.told;
  }

  close(): void {
    this.#open.clear();
    this.#manager = null;
    this.#lookout.close();
  }

  #tick(): Promise<void> {
    this.#giveUp();
    this.#busy ??= this.#look().finally(() => {
      this.#busy = null;
    });
    return this.#busy;
  }

  /** Those of which nobody has heard for so long that their tasks may soon be given to others. */
  #giveUp(): void {
    const { address, renewal } = this.#connection;
    const patience = address.patience + renewal;
    this.#slept = bootMilliseconds() - now();
    const time = this.time;
    if (this.#manager !== null && time - this.#manager.renewed >= patience) this.#loseManagement();
    for (const { lifetime, controller, renewed } of this.#open.values()) {
      if (lifetime || time - renewed < patience) continue;
      const seconds = Math.round((time - renewed) / 1000);
      controller.abort(
        new Error(`the queue could not be reached for ${seconds} s, and the task may be given to others`),
      );
    }
  }

  async #look(): Promise<void> {
    if (!this.#connection.isReady) return;
    const started = this.time;
    const renew = started - this.#renewed >= this.#connection.renewal;
    try {
      const tokens = [...this.#open.keys()];
      for (let from = 0; from === 0 || from < tokens.length; from += PORTION) {
        const portion = tokens.slice(from, from + PORTION);
        const [version, manages, over] = await this.#connection.call<[string, number, Answer[]]>(
          'tick',
          renew ? 1 : 0,
          this.#manager?.who ?? '',
          ...portion,
        );
        this.#note(portion, renew ? started : null, over as string[]);
        if (manages === 0) this.#loseManagement();
        else if (renew && this.#manager !== null) this.#manager.renewed = started;
        if (version === this.#version) continue;
        this.#version = version;
        this.#lookout.tell();
      }
      if (renew) this.#renewed = started;
    } catch {
      // Next time; whoever needs the queue now meets the error itself.
    }
  }

  #note(tokens: readonly string[], renewed: number | null, over: readonly string[]): void {
    for (let index = 0; index < over.length; index += 2) {
      const controller = this.#open.get(over[index] as string)?.controller;
      if (controller !== undefined && !controller.signal.aborted)
        controller.abort(new Error(over[index + 1]));
    }
    if (renewed === null) return;
    for (const token of tokens) {
      const open = this.#open.get(token);
      if (open !== undefined && !open.controller.signal.aborted)
        open.renewed = Math.max(open.renewed, renewed);
    }
  }

  #loseManagement(): void {
    const { onLost } = this.#manager ?? {};
    this.#manager = null;
    onLost?.();
  }
}

/** Signs of life, and what follows when there are none. */
export const SIGNS = `
-- Answers the version, whether the manager is still this one, and attempts that are over, with the reason.
function operations.tick(renew, manager, ...)
  local over = {}
  for _, token in ipairs({...}) do
    local attempt = also('attemptOf', token)
    if not attempt then
      over[#over + 1] = token
      over[#over + 1] = 'the queue does not know the attempt any longer'
    else
      local alive = true
      if renew == '1' and not attempt.deadline then
        alive = bull('extendLock', {id = attempt.task, token = token}) == 1
      end
      if attempt.outcome then
        over[#over + 1] = token
        over[#over + 1] = attempt.error or attempt.outcome
      elseif not alive then
        over[#over + 1] = token
        over[#over + 1] = 'the queue had no sign of life for too long'
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
  if renew == '1' then also('endOverdue') end
  -- As often as somebody looks, BullMQ has a limit of its own: tasks of the dead shall not wait for the next sign of life.
  also('checkStalled')
  local version = rcall('HMGET', P .. 'settings', 'version', 'sequence')
  -- What has started is active, unless it has ended, which is seen by the others.
  return {(version[1] or '') .. ' ' .. (version[2] or '') .. ' ' .. also('count', 'active'), manages, over}
end

-- For those who take nothing. A worker that had no Redis for long may still say itself what has become of its task: it gets as much
-- time again for that, unless somebody takes the task.
function operations.endLost()
  also('endOverdue')
  for _, id in ipairs(also('listed', 'active', 0, -1)) do
    local token = (get(id, 'attempt'))
    if not token then
      also('endLost', id, token, '', token)
    elseif also('lockOf', id) ~= token then
      local fields = redis.pcall('HMGET', P .. 'attempt:' .. token, 'deadline', 'silent')
      local deadline, silent = tonumber(fields[1]), tonumber(fields[2])
      if fields.err then
        also('endLost', id, token, '', token)
      elseif not deadline and not silent then
        rcall('HSET', P .. 'attempt:' .. token, 'silent', NOW)
      elseif not deadline and NOW - silent > tonumber(LOCK) then
        also('endLost', id, token, 'ended without a word, or lost the queue for too long', token)
      end
    end
  end
  return 1
end
`;
