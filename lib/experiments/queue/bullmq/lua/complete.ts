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
