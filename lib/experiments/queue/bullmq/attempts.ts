import { randomBytes } from 'node:crypto';
import { stringifyValue } from '../../task/index.ts';
import { type Attempt, MAX_DELAY_MS, type Needs, type Queue, type State, type WorkerInfo } from '../queue.ts';
import { readCount } from '../records.ts';
import type { RedisConnection, RedisReply } from './connection.ts';
import type { LockRenewal } from './lock-renewal.ts';
import { offerWords, taskOf } from './queries.ts';

/** The methods of a queue that begin and end attempts. */
export function attemptMethods(
  connection: RedisConnection,
  renewal: LockRenewal,
): Pick<Queue, 'take' | 'endLost' | 'setLog' | 'submit' | 'complete' | 'fail' | 'requeue'> {
  /** Tokens that may have got a task although an error was heard. */
  const doubtful = new Set<string>();

  /** Requeues tasks that were given out without this process hearing of it. */
  const requeueDoubtful = async () => {
    for (const token of doubtful) {
      const why = 'the queue could not be reached when the task was given out';
      await connection.call('requeue', token, why, 0);
      doubtful.delete(token);
    }
  };
  const take = async (
    worker: WorkerInfo,
    lifetime: number | undefined,
    offer: Needs | undefined,
  ): Promise<Attempt | null> => {
    await requeueDoubtful();
    void connection.setName(worker.host);
    const token = randomBytes(16).toString('hex');
    const asked = renewal.time;
    const milliseconds = lifetime === undefined ? '' : Math.ceil(lifetime);
    const words = [token, milliseconds, worker.name, workerText(worker), ...offerWords(offer)];
    const answer = await connection.call<RedisReply[] | null>('take', ...words).catch((error) => {
      doubtful.add(token);
      throw error;
    });
    if (answer === null) return null;
    const task = taskOf(answer);
    if (task.damage !== undefined) {
      // Nobody can run it, and it must not stop others.
      await connection.call('fail', token, task.damage, 0);
      return take(worker, lifetime, offer);
    }
    const isOnce = answer[6] === '1';
    const kept = renewal.add(token, answer[0] as string, { lifetime: lifetime !== undefined, isOnce }, asked);
    return { token, task, start: readCount(answer[5]), descriptors: [], isOnce, ...kept };
  };
  /** Ends the attempt, whatever the answer: its process has nothing more to do with the task. */
  const ended = <T>(token: string, answer: T): T => {
    renewal.remove(token);
    return answer;
  };
  return {
    take: (worker, { lifetime, offer } = {}) => take(worker, lifetime, offer),

    async endLost() {
      await connection.call('endLost');
    },

    async setLog(token, { path, from, to }) {
      await connection.call('setLog', token, path, from, to ?? '');
    },

    async submit(token, result) {
      return (await connection.call('submit', token, stringifyValue(result))) === 1;
    },

    async complete(token, result) {
      const given = result === null ? ['', 0, ''] : [renewal.taskOf(token) ?? '', 1, stringifyValue(result)];
      return ended(token, (await connection.call('complete', token, ...given)) === 1);
    },

    async fail(token, { error, retry }) {
      return ended(token, await connection.call<State | null>('fail', token, error, retry ? 1 : 0));
    },

    async requeue(token, why, delay = 0) {
      const milliseconds = Math.min(Math.max(0, Math.ceil(delay)), MAX_DELAY_MS);
      return ended(token, (await connection.call('requeue', token, why, milliseconds)) === 1);
    },
  };
}

/** A worker as text, as `attemptInfoOf` and the scripts read it. */
function workerText({ name, host, pid, gpus }: WorkerInfo): string {
  return JSON.stringify([wellFormed(name), wellFormed(host), pid, gpus]);
}

/** Replaces halves of characters by U+FFFD: Lua's JSON refuses them. */
function wellFormed(text: string): string {
  return Buffer.from(text).toString();
}

/** The Lua of `take`. */
export const TAKE = `
-- A job that BullMQ has given us. The task, if it is started now.
-- gpus, memory: more than that isn't offered; nil: it is enough for all tasks
local function begin(id, token, worker, lifetime, gpus, memory)
  local key = P .. 'task:' .. id
  local fields = redis.pcall('HMGET', key, 'name', 'parameters', 'command', 'places', 'starts', 'state', 'due', 'attempt', 'number',
    'once')
  if fields.err then fields = {} end
  local name, parameters, command, places, starts, state, due, last, number, once = unpack(fields)
  if not state then -- not one of ours, or its record is gone
    bull('failed', {id = id, value = 'no task has this id'})
    local place = rcall('ZSCORE', P .. 'states', id)
    if place then lazily('index', id, 'failed', place % 2 ^ 40) end
    return nil
  end
  if state == 'active' then
    lazily('endLost', id, last, 'ended silently, or could not reach the queue for too long', token)
    return nil
  end
  if not tonumber(starts) or not tonumber(number) then
    starts, number = lazily('startsOf', starts), lazily('numberOf', id, number)
    rcall('HSET', key, 'number', string.format('%.0f', number))
  end
  local early = tonumber(due) and due - NOW
  local tooLarge = gpus and not lazily('isEnough', rcall('HGET', P .. 'needs', id), gpus, memory)
  if state ~= 'pending' or (early and early > 0) or tooLarge then
    lazily('release', id, token, true, nil, early)
    return nil
  end
  starts = string.format('%d', starts + 1)
  local attempt = P .. 'attempt:' .. token
  rcall('HSET', attempt, 'begun', NOW .. ' ' .. id .. ' ' .. worker)
  if last then rcall('HSET', attempt, 'before', last) end
  if lifetime then
    rcall('HSET', attempt, 'deadline', NOW + lifetime)
    rcall('ZADD', P .. 'deadlines', NOW + lifetime, token)
  end
  if once and not lifetime then
    -- Nobody gets it by waiting.
    rcall('PERSIST', B .. id .. ':lock')
    rcall('HSET', attempt, 'once', '1', 'seen', NOW)
  end
  rcall('HSET', key, 'attempt', token, 'starts', starts, 'state', 'active')
  rcall('ZADD', P .. 'states', 2 ^ 40 + number, id)
  if due then
    rcall('HDEL', key, 'due')
    rcall('ZREM', P .. 'due', id)
  end
  return {id, name, parameters, command, places, starts, once}
end

function operations.take(token, lifetime, name, worker, gpus, memory)
  local earlier = AGAIN and lazily('attemptOf', token)
  if earlier then
    if earlier.outcome then return false end
    return {earlier.task, lazily('get', earlier.task, 'name', 'parameters', 'command', 'places', 'starts', 'once')}
  end
  lifetime = lifetime ~= '' and tonumber(lifetime) or nil
  local opts = {token = token, lockDuration = lifetime and lifetime + 60000 or LOCK, name = name}
  local checked = false
  gpus, memory = tonumber(gpus), tonumber(memory)
  if gpus and (rcall('EXISTS', P .. 'kinds') == 0 or lazily('suffices', gpus, memory)) then gpus = nil end
  -- Somebody may have resumed BullMQ's queue in a dashboard: a pause of ours stands.
  local paused = rcall('HEXISTS', P .. 'settings', 'pause') == 1
  for tries = 1, 1000 do
    local job = not paused and (not gpus or lazily('putFirst', gpus, memory)) and bull('moveToActive', {opts = opts})
    local id = type(job) == 'table' and job[2]
    if not id or id == 0 or id == '' then
      -- Somebody may have gone without a word. Signs of life of others find that out, too.
      if checked or lazily('endOverdue') + lazily('checkStalled') == 0 then return queueRemoved() or false end
      checked = true
    else
      local task = begin(id, token, worker, lifetime, gpus, memory)
      if task then return task end
    end
  end
  return false
end
`;

/** The Lua of `complete`. It may run twice, because an answer was lost. */
export const COMPLETE = `
local function completeSomehow(token, given, result)
  local attempt = lazily('attemptOf', token)
  if not attempt then return 0 end
  local id, outcome = attempt.task, attempt.outcome
  if outcome == 'completed' then
    local by, kept = (lazily('completedBy', id)), (lazily('get', id, 'result'))
    return by == token and (given == '0' or kept == result) and 1 or 0
  end
  if not lazily('mayComplete', attempt) then
    lazily('release', id, token, false)
    lazily('excuse', token, attempt)
    lazily('bump')
    return 0
  end
  result = given == '1' and result or attempt.result or '{}'
  if outcome then
    -- Whoever has the task now needn't go on.
    lazily('revoke', id, (lazily('get', id, 'attempt')), 'worker ' .. attempt.worker .. ' came late, but with a result')
    rcall('HDEL', P .. 'attempt:' .. token, 'error')
  end
  lazily('endAttempt', token, 'completed', nil, attempt.deadline)
  local number, due, why = lazily('get', id, 'number', 'due', 'error')
  local fields = {'by', token}
  -- Who asks over TCP has no PID.
  if given == '0' and not attempt.result and attempt.pid == 0 then
    fields[3], fields[4] = 'without', attempt.host .. '\\n' .. attempt.worker
    rcall('HINCRBY', P .. 'without', fields[4], 1)
  end
  completeTask(id, result, number, due, why, unpack(fields))
  -- Its lock is its own, if it has one: whoever gets the task notes its end first.
  if outcome then lazily('removeJob', id) else completeJob(id, result) end
  return 1
end

-- id: of the task, if the attempt gives signs of life and has a result; else ''
function operations.complete(token, id, given, result)
  if id ~= '' then
    local state, number, last, why = unpack(rcall('HMGET', P .. 'task:' .. id, 'state', 'number', 'attempt', 'error'))
    if state == 'active' and last == token then
      completeTask(id, result, number, nil, why)
      completeJob(id, result)
      return 1
    end
  end
  return completeSomehow(token, given, result)
end
`;

/** The Lua of the other methods. Each may run twice, because an answer was lost. */
export const ATTEMPTS = `
function operations.submit(token, result)
  local attempt = attemptOf(token)
  if not attempt or not mayComplete(attempt) then return 0 end
  rcall('HSET', P .. 'attempt:' .. token, 'result', result)
  return 1
end

function operations.fail(token, why, again)
  local attempt = attemptOf(token)
  if not attempt then return false end
  local id = attempt.task
  local state, last = get(id, 'state', 'attempt')
  if attempt.outcome == 'failed' and attempt.error == why and last == token then return state end
  local own = not attempt.outcome
  if own then
    endAttempt(token, 'failed', why, attempt.deadline)
    state = failTask(id, why, again == '1')
  end
  release(id, token, own)
  bump()
  return own and state
end

function operations.requeue(token, why, delay)
  local attempt = attemptOf(token)
  if not attempt then return 0 end
  local id = attempt.task
  local own = not attempt.outcome
  local state, last, starts = get(id, 'state', 'attempt', 'starts')
  if attempt.outcome == 'given-back' and attempt.error == why and last == token then return 1 end
  delay = tonumber(delay)
  local priority
  if own then
    endAttempt(token, 'given-back', why, attempt.deadline)
    starts = math.max(startsOf(starts) - 1, 0)
    -- before those that have waited behind it
    priority = 2 * starts + 1
    set(id, 'starts', starts, 'error', why)
    if delay > 0 then
      set(id, 'due', NOW + delay)
      rcall('ZADD', P .. 'due', NOW + delay, id)
    end
    move(id, 'pending')
  end
  release(id, token, own, priority, own and delay or 0)
  if not own then excuse(token, attempt) end
  bump()
  return own and 1 or 0
end

function operations.setLog(token, path, from, to)
  local key = P .. 'attempt:' .. token
  local attempt = attemptOf(token)
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
