/** Giving out, and what attempts say of themselves. Everything may be said again, because an answer was lost. */
export const ATTEMPTS = `
local function describe(id)
  return rcall('HMGET', P .. 'task:' .. id, 'id', 'name', 'parameters', 'command', 'places', 'starts', 'state', 'due', 'attempt',
    'number')
end

local function endOverdue()
  for _, token in ipairs(rcall('ZRANGEBYSCORE', P .. 'deadlines', '-inf', now, 'LIMIT', 0, 100)) do
    local id = attemptOf(token).task
    endLost(id, token, 'has not been heard of in time')
    release(id, token, true)
    bump()
  end
end

-- For those who take nothing. A worker that had no Redis for long may still say itself what has become of its task: it gets as much
-- time again for that, unless somebody takes the task.
function operations.endLost()
  endOverdue()
  for _, token in ipairs(rcall('ZRANGE', P .. 'living', 0, -1)) do
    local id, deadline, silent = unpack(rcall('HMGET', P .. 'attempt:' .. token, 'task', 'deadline', 'silent'))
    if not deadline and lockOf(id) ~= token then
      if not silent then
        rcall('HSET', P .. 'attempt:' .. token, 'silent', now)
      elseif now - silent > tonumber(LOCK) then
        endLost(id, token, 'ended without a word, or lost the queue for too long')
        release(id, token, true)
        bump()
      end
    end
  end
  return 1
end

-- A job that BullMQ has given us. The task, if it is started now.
local function begin(id, token, taker, lifetime)
  local task = describe(id)
  local starts, state, due, last, number = tonumber(task[6]), task[7], tonumber(task[8] or nil), task[9], task[10]
  if not state then -- not one of ours
    bull.failed({['@ID@'] = id, ['@NOW@'] = NOW, ['@VALUE@'] = 'no task has this id'})
    return nil
  end
  if state == 'active' then
    endLost(id, last, 'ended without a word, or lost the queue for too long')
    release(id, token, true)
    bump()
    return nil
  end
  if state ~= 'pending' or (due and due > now) then
    release(id, token, true, nil, due and due - now)
    return nil
  end
  starts = starts + 1
  task[6] = starts
  local order = bump()
  local key = P .. 'attempt:' .. token
  rcall('HSET', key, 'task', id, 'start', starts, 'worker', taker[1], 'host', taker[2], 'pid', taker[3], 'gpus', taker[4],
    'since', now)
  rcall('RPUSH', P .. 'attempts:' .. id, token)
  rcall('ZADD', P .. 'living', order, token)
  if lifetime then
    rcall('HSET', key, 'deadline', now + lifetime)
    rcall('ZADD', P .. 'deadlines', now + lifetime, token)
  end
  set(id, 'attempt', token, 'starts', starts, 'state', 'active')
  rcall('ZREM', P .. 'state:pending', id)
  rcall('ZADD', P .. 'state:active', number, id)
  if due then
    rcall('HDEL', P .. 'task:' .. id, 'due')
    rcall('ZREM', P .. 'due', id)
  end
  return task
end

function operations.take(token, lifetime, worker, host, pid, gpus)
  local earlier = attemptOf(token)
  if earlier then return not earlier.outcome and describe(earlier.task) or false end
  endOverdue()
  if rcall('HEXISTS', P .. 'settings', 'pause') == 1 then return false end
  lifetime = lifetime ~= '' and tonumber(lifetime) or nil
  local opts = cmsgpack.pack({token = token, lockDuration = lifetime and lifetime + 60000 or tonumber(LOCK), name = worker})
  local checked = false
  for tries = 1, 1000 do
    local job = bull.moveToActive({['@NOW@'] = NOW, ['@OPTS@'] = opts})
    local id = type(job) == 'table' and job[2]
    if not id or id == 0 or id == '' then
      if checked or checkStalled() == 0 then return false end
      checked = true
    else
      local task = begin(id, token, {worker, host, pid, gpus}, lifetime)
      if task then return task end
    end
  end
  return false
end

-- The task is its own, or it gave no sign of life in time and the task has still no result.
local function mayComplete(attempt)
  if not attempt.outcome then return true end
  if attempt.outcome ~= 'lost' or not attempt.deadline then return false end
  local state = get(attempt.task, 'state')
  return state == 'pending' or state == 'active' or state == 'failed'
end

-- An attempt that was counted as lost is heard of after all: it was cut off, and that is not the task's fault.
local function excuse(token, attempt)
  if attempt.outcome ~= 'lost' or attempt.deadline then return end
  local id, key = attempt.task, P .. 'attempt:' .. token
  if rcall('HSETNX', key, 'excused', 1) == 0 then return end
  local starts, state, last, retried = get(id, 'starts', 'state', 'error', 'retried')
  -- Whoever has retried the task since has forgiven all starts already.
  if retried and tonumber(rcall('HGET', key, 'since')) <= tonumber(retried) then return end
  set(id, 'starts', math.max(tonumber(starts) - 1, 0))
  if state ~= 'failed' or last ~= attempt.error then return end
  rcall('HDEL', P .. 'task:' .. id, 'ended')
  move(id, 'pending')
  if not lockOf(id) then
    bull.remove({['@ID@'] = id})
    addTicket(id, 2 * tonumber(starts))
  end
end

function operations.submit(token, result)
  local attempt = attemptOf(token)
  if not attempt or not mayComplete(attempt) then return 0 end
  rcall('HSET', P .. 'attempt:' .. token, 'result', result)
  return 1
end

function operations.complete(token, given, result)
  local attempt = attemptOf(token)
  if not attempt then return 0 end
  local id = attempt.task
  if attempt.outcome == 'completed' then
    local state, by, kept = get(id, 'state', 'by', 'result')
    return state == 'completed' and by == token and (given == '0' or kept == result) and 1 or 0
  end
  if not mayComplete(attempt) then
    release(id, token, false)
    excuse(token, attempt)
    bump()
    return 0
  end
  local own = not attempt.outcome
  if not own then
    -- Whoever has the task now needn't go on.
    revoke(id, (get(id, 'attempt')), 'worker ' .. attempt.worker .. ' came late, but with a result')
  end
  endAttempt(token, 'completed', nil, attempt.deadline)
  completeTask(id, 'worker', given == '1' and result or attempt.result or '{}', token)
  if own then release(id, token, true) else removeTicket(id) end
  bump()
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

function operations.giveBack(token, why, delay)
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
    starts = math.max(tonumber(starts) - 1, 0)
    -- before those that have waited behind it
    priority = 2 * starts + 1
    set(id, 'starts', starts, 'error', why)
    if delay > 0 then
      set(id, 'due', now + delay)
      rcall('ZADD', P .. 'due', now + delay, id)
    end
    move(id, 'pending')
  end
  release(id, token, own, priority, own and delay or 0)
  if not own then excuse(token, attempt) end
  bump()
  return own and 1 or 0
end

function operations.note(token, path, from, to)
  local key = P .. 'attempt:' .. token
  if rcall('EXISTS', key) == 0 then return 0 end
  local id, host, known = unpack(rcall('HMGET', key, 'task', 'host', 'log'))
  rcall('HSET', key, 'log', path, 'log_from', from, 'log_to', to)
  -- For dashboards.
  if not known and rcall('EXISTS', B .. id) == 1 then
    rcall('RPUSH', B .. id .. ':logs', 'its output is on ' .. host .. ': ' .. path)
  end
  bump()
  return 1
end

-- Signs of life. Answers: the version, whether the manager is still this one, and attempts that are over, with the reason.
function operations.tick(renew, manager, ...)
  local over = {}
  for _, token in ipairs({...}) do
    local attempt = attemptOf(token)
    if not attempt then
      over[#over + 1] = token
      over[#over + 1] = 'the queue does not know the attempt any longer'
    else
      local alive = true
      if renew == '1' and not attempt.deadline then
        local values = {['@ID@'] = attempt.task, ['@TOKEN@'] = token, ['@LOCK@'] = LOCK}
        alive = bull.extendLock(values) == 1
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
    local current = rcall('GET', P .. 'manager')
    if not current or current == manager then
      rcall('SET', P .. 'manager', manager, 'PX', LOCK)
    else
      manages = 0
    end
  end
  -- As often as somebody looks, BullMQ has a limit of its own: tasks of the dead shall not wait for the next sign of life.
  checkStalled()
  return {rcall('HGET', P .. 'settings', 'version') or '0', manages, over}
end
`;
