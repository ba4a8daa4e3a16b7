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
