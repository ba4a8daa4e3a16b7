/** Signs of life. */
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
    local current = rcall('GET', P .. 'manager')
    if not current or current == manager then
      rcall('SET', P .. 'manager', manager, 'PX', LOCK)
    else
      manages = 0
    end
  end
  if renew == '1' then
    also('endOverdue')
    also('checkStalled')
  end
  local version = rcall('HMGET', P .. 'settings', 'version', 'sequence')
  -- What has started is active, unless it has ended, which is seen by the others.
  return {(version[1] or '') .. ' ' .. (version[2] or '') .. ' ' .. also('count', 'active'), manages, over}
end
`;
