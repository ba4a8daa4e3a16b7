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
