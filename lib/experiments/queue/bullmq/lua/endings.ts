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
