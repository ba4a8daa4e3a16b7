import { randomBytes } from 'node:crypto';
import { stringify, type Values } from '../../task/index.ts';
import { type Attempt, type Failure, MAX_DELAY_MS, type State, type WorkerInfo } from '../queue.ts';
import { readCount } from '../records.ts';
import type { Answer, Connection } from './connection.ts';
import type { Leases } from './lock-renewal.ts';
import { takerText, taskOf } from './rows.ts';

/** Takes tasks, and says what became of them: see `Queue`. */
export class Attempts {
  readonly #connection: Connection;
  readonly #leases: Leases;
  /** Asked for, and an error heard: a task may have been given out. */
  readonly #doubtful = new Set<string>();

  constructor(connection: Connection, leases: Leases) {
    this.#connection = connection;
    this.#leases = leases;
  }

  async take(taker: WorkerInfo, lifetime: number | undefined): Promise<Attempt | null> {
    await this.#settleDoubtful();
    void this.#connection.introduce(taker.host);
    const token = randomBytes(16).toString('hex');
    const asked = this.#leases.time;
    const answer = await this.#connection
      .call<Answer[] | null>(
        'take',
        token,
        lifetime === undefined ? '' : Math.ceil(lifetime),
        taker.worker,
        takerText(taker),
      )
      .catch((error) => {
        this.#doubtful.add(token);
        throw error;
      });
    if (answer === null) return null;
    const task = taskOf(answer);
    if (task.damage !== undefined) {
      // Nobody can run it, and everybody else is to go on.
      await this.#connection.call('fail', token, task.damage, 0);
      return this.take(taker, lifetime);
    }
    const signal = this.#leases.add(token, answer[0] as string, lifetime !== undefined, asked);
    return { token, task, start: readCount(answer[5]), descriptors: [], signal };
  }

  /** What was given out, and not heard of, is nobody's. */
  async #settleDoubtful(): Promise<void> {
    for (const token of this.#doubtful) {
      const why = 'the queue could not be reached when it was given out';
      await this.#connection.call('requeue', token, why, 0);
      this.#doubtful.delete(token);
    }
  }

  async endLost(): Promise<void> {
    await this.#connection.call('endLost');
  }

  async setLog(
    token: string,
    { path, from, to }: { path: string; from: number; to: number | null },
  ): Promise<void> {
    await this.#connection.call('setLog', token, path, from, to ?? '');
  }

  async submit(token: string, result: Values): Promise<boolean> {
    return (await this.#connection.call('submit', token, stringify(result))) === 1;
  }

  async complete(token: string, result: Values | null): Promise<boolean> {
    const given = result === null ? ['', 0, ''] : [this.#leases.taskOf(token) ?? '', 1, stringify(result)];
    return this.#ended(token, (await this.#connection.call('complete', token, ...given)) === 1);
  }

  async fail(token: string, { error, retry }: Failure): Promise<State | null> {
    return this.#ended(token, await this.#connection.call<State | null>('fail', token, error, retry ? 1 : 0));
  }

  async requeue(token: string, why: string, delay: number): Promise<boolean> {
    const milliseconds = Math.min(Math.max(0, Math.ceil(delay)), MAX_DELAY_MS);
    const answer = await this.#connection.call('requeue', token, why, milliseconds);
    return this.#ended(token, answer === 1);
  }

  /** Whatever the answer, the attempt is over: its process has nothing more to do with the task. */
  #ended<T>(token: string, answer: T): T {
    this.#leases.remove(token);
    return answer;
  }
}

/** Giving out. */
export const TAKE = `
-- A job that BullMQ has given us. The task, if it is started now.
local function begin(id, token, taker, lifetime)
  local key = P .. 'task:' .. id
  local fields = redis.pcall('HMGET', key, 'name', 'parameters', 'command', 'places', 'starts', 'state', 'due', 'attempt', 'number')
  if fields.err then fields = {} end
  local name, parameters, command, places, starts, state, due, last, number = unpack(fields)
  if not state then -- not one of ours, or its record is gone
    bull('failed', {id = id, value = 'no task has this id'})
    local place = rcall('ZSCORE', P .. 'states', id)
    if place then also('index', id, 'failed', place % 2 ^ 40) end
    return nil
  end
  if state == 'active' then
    also('endLost', id, last, 'ended without a word, or lost the queue for too long', token)
    return nil
  end
  if not tonumber(starts) or not tonumber(number) then
    starts, number = also('startsOf', starts), also('numberOf', id, number)
    rcall('HSET', key, 'number', string.format('%.0f', number))
  end
  local early = tonumber(due) and due - NOW
  if state ~= 'pending' or (early and early > 0) then
    also('release', id, token, true, nil, early)
    return nil
  end
  starts = string.format('%d', starts + 1)
  local attempt = P .. 'attempt:' .. token
  rcall('HSET', attempt, 'begun', NOW .. ' ' .. id .. ' ' .. taker)
  if last then rcall('HSET', attempt, 'before', last) end
  if lifetime then
    rcall('HSET', attempt, 'deadline', NOW + lifetime)
    rcall('ZADD', P .. 'deadlines', NOW + lifetime, token)
  end
  rcall('HSET', key, 'attempt', token, 'starts', starts, 'state', 'active')
  rcall('ZADD', P .. 'states', 2 ^ 40 + number, id)
  if due then
    rcall('HDEL', key, 'due')
    rcall('ZREM', P .. 'due', id)
  end
  return {id, name, parameters, command, places, starts}
end

function operations.take(token, lifetime, worker, taker)
  local earlier = AGAIN and also('attemptOf', token)
  if earlier then
    if earlier.outcome then return false end
    return {earlier.task, also('get', earlier.task, 'name', 'parameters', 'command', 'places', 'starts')}
  end
  lifetime = lifetime ~= '' and tonumber(lifetime) or nil
  local opts = {token = token, lockDuration = lifetime and lifetime + 60000 or LOCK, name = worker}
  local checked = false
  -- Somebody may have resumed BullMQ's queue in a dashboard: a pause of ours stands.
  local paused = rcall('HEXISTS', P .. 'settings', 'pause') == 1
  for tries = 1, 1000 do
    local job = not paused and bull('moveToActive', {opts = opts})
    local id = type(job) == 'table' and job[2]
    if not id or id == 0 or id == '' then
      -- Somebody may have gone without a word. Signs of life of others find that out, too.
      if checked or also('endOverdue') + also('checkStalled') == 0 then return gone() or false end
      checked = true
    else
      local task = begin(id, token, taker, lifetime)
      if task then return task end
    end
  end
  return false
end
`;

/** The completion of an attempt. It may be said again, because an answer was lost. */
export const COMPLETE = `
local function completeSomehow(token, given, result)
  local attempt = also('attemptOf', token)
  if not attempt then return 0 end
  local id, outcome = attempt.task, attempt.outcome
  if outcome == 'completed' then
    local by, kept = (also('completedBy', id)), (also('get', id, 'result'))
    return by == token and (given == '0' or kept == result) and 1 or 0
  end
  if not also('mayComplete', attempt) then
    also('release', id, token, false)
    also('excuse', token, attempt)
    also('bump')
    return 0
  end
  result = given == '1' and result or attempt.result or '{}'
  if outcome then
    -- Whoever has the task now needn't go on.
    also('revoke', id, (also('get', id, 'attempt')), 'worker ' .. attempt.worker .. ' came late, but with a result')
    rcall('HDEL', P .. 'attempt:' .. token, 'error')
  end
  also('endAttempt', token, 'completed', nil, attempt.deadline)
  local number, due, why = also('get', id, 'number', 'due', 'error')
  local fields = {'by', token}
  -- Who asks over TCP has no PID.
  if given == '0' and not attempt.result and attempt.pid == 0 then
    fields[3], fields[4] = 'without', attempt.host .. '\\n' .. attempt.worker
    rcall('HINCRBY', P .. 'without', fields[4], 1)
  end
  completeTask(id, result, number, due, why, unpack(fields))
  -- Its lock is its own, if it has one: whoever gets the task notes its end first.
  if outcome then also('removeTicket', id) else completeTicket(id, result) end
  return 1
end

-- id: of the task, if the attempt gives signs of life and has a result; else ''
function operations.complete(token, id, given, result)
  if id ~= '' then
    local state, number, last, why = unpack(rcall('HMGET', P .. 'task:' .. id, 'state', 'number', 'attempt', 'error'))
    if state == 'active' and last == token then
      completeTask(id, result, number, nil, why)
      completeTicket(id, result)
      return 1
    end
  end
  return completeSomehow(token, given, result)
end
`;

/** What attempts say of themselves, but completions. Everything may be said again, because an answer was lost. */
export const ENDINGS = `
function operations.submit(token, result)
  local attempt = also('attemptOf', token)
  if not attempt or not also('mayComplete', attempt) then return 0 end
  rcall('HSET', P .. 'attempt:' .. token, 'result', result)
  return 1
end

function operations.fail(token, why, again)
  local attempt = also('attemptOf', token)
  if not attempt then return false end
  local id = attempt.task
  local state, last = get(id, 'state', 'attempt')
  if attempt.outcome == 'failed' and attempt.error == why and last == token then return state end
  local own = not attempt.outcome
  if own then
    endAttempt(token, 'failed', why, attempt.deadline)
    state = also('failTask', id, why, again == '1')
  end
  also('release', id, token, own)
  bump()
  return own and state
end

function operations.requeue(token, why, delay)
  local attempt = also('attemptOf', token)
  if not attempt then return 0 end
  local id = attempt.task
  local own = not attempt.outcome
  local state, last, starts = get(id, 'state', 'attempt', 'starts')
  if attempt.outcome == 'given-back' and attempt.error == why and last == token then return 1 end
  delay = tonumber(delay)
  local priority
  if own then
    endAttempt(token, 'given-back', why, attempt.deadline)
    starts = math.max(also('startsOf', starts) - 1, 0)
    -- before those that have waited behind it
    priority = 2 * starts + 1
    set(id, 'starts', starts, 'error', why)
    if delay > 0 then
      set(id, 'due', NOW + delay)
      rcall('ZADD', P .. 'due', NOW + delay, id)
    end
    also('move', id, 'pending')
  end
  also('release', id, token, own, priority, own and delay or 0)
  if not own then also('excuse', token, attempt) end
  bump()
  return own and 1 or 0
end

function operations.setLog(token, path, from, to)
  local key = P .. 'attempt:' .. token
  local attempt = also('attemptOf', token)
  if not attempt then return 0 end
  local id, known = attempt.task, rcall('HEXISTS', key, 'log') == 1
  rcall('HSET', key, 'log', path, 'log_from', from, 'log_to', to)
  -- For dashboards.
  if not known and rcall('EXISTS', B .. id) == 1 then
    rcall('RPUSH', B .. id .. ':logs', 'its output is on ' .. attempt.host .. ': ' .. path)
  end
  bump()
  return 1
end
`;
