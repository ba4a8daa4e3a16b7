/** What attempts say of themselves. Everything may be said again, because an answer was lost. */
export const ENDINGS = `
-- The task is its own, or it gave no sign of life in time and the task has still no result.
local function mayComplete(id, outcome, deadline)
  if not outcome then return true end
  if outcome ~= 'lost' or not deadline then return false end
  local state = get(id, 'state')
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
  also('move', id, 'pending')
  if not also('lockOf', id) then also('replaceTicket', id, 'pending', 2 * tonumber(starts)) end
end

function operations.submit(token, result)
  local attempt = also('attemptOf', token)
  if not attempt or not mayComplete(attempt.task, attempt.outcome, attempt.deadline) then return 0 end
  rcall('HSET', P .. 'attempt:' .. token, 'result', result)
  return 1
end

function operations.complete(token, given, result)
  local id, outcome, deadline, submitted =
    unpack(rcall('HMGET', P .. 'attempt:' .. token, 'task', 'outcome', 'deadline', 'result'))
  if not id then return 0 end
  if outcome == 'completed' then
    local state, by, kept = get(id, 'state', 'by', 'result')
    return state == 'completed' and by == token and (given == '0' or kept == result) and 1 or 0
  end
  if not mayComplete(id, outcome, deadline) then
    also('release', id, token, false)
    excuse(token, also('attemptOf', token))
    bump()
    return 0
  end
  result = given == '1' and result or submitted or '{}'
  if outcome then
    -- Whoever has the task now needn't go on.
    local worker = rcall('HGET', P .. 'attempt:' .. token, 'worker')
    also('revoke', id, (get(id, 'attempt')), 'worker ' .. worker .. ' came late, but with a result')
  end
  endAttempt(token, 'completed', nil, deadline)
  completeTask(id, 'worker', result, token)
  -- Its lock is its own, if it has one: whoever gets the task notes its end first.
  if outcome then also('removeTicket', id) else completeTicket(id, result) end
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

function operations.giveBack(token, why, delay)
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
    starts = math.max(tonumber(starts) - 1, 0)
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
  if not own then excuse(token, attempt) end
  bump()
  return own and 1 or 0
end

function operations.note(token, path, from, to)
  local key = P .. 'attempt:' .. token
  local id, host, known = unpack(rcall('HMGET', key, 'task', 'host', 'log'))
  if not id then return 0 end
  rcall('HSET', key, 'log', path, 'log_from', from, 'log_to', to)
  -- For dashboards.
  if not known and rcall('EXISTS', B .. id) == 1 then
    rcall('RPUSH', B .. id .. ':logs', 'its output is on ' .. host .. ': ' .. path)
  end
  bump()
  return 1
end
`;
