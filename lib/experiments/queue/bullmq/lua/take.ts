/** Giving out. */
export const TAKE = `
local function describe(id)
  local task = rcall('HMGET', P .. 'task:' .. id, 'name', 'parameters', 'command', 'places', 'starts', 'state', 'due', 'attempt',
    'number')
  return task, {id, task[1], task[2], task[3], task[4], task[5]}
end

-- A job that BullMQ has given us. The task, if it is started now.
local function begin(id, token, taker, lifetime)
  local task, answer = describe(id)
  local starts, state, due, last, number = tonumber(task[5]), task[6], tonumber(task[7] or nil), task[8], task[9]
  if not state then -- not one of ours
    bull('failed', {id = id, value = 'no task has this id'})
    return nil
  end
  if state == 'active' then
    also('endLost', id, last, 'ended without a word, or lost the queue for too long', token)
    return nil
  end
  local early = due and due - NOW
  if state ~= 'pending' or (early and early > 0) then
    also('release', id, token, true, nil, early)
    return nil
  end
  starts = starts + 1
  answer[6] = starts
  local words = {'task', id, 'worker', taker[1], 'host', taker[2], 'pid', taker[3], 'gpus', taker[4], 'since', NOW}
  if last then
    words[#words + 1] = 'before'
    words[#words + 1] = last
  end
  if lifetime then
    words[#words + 1] = 'deadline'
    words[#words + 1] = NOW + lifetime
    rcall('ZADD', P .. 'deadlines', NOW + lifetime, token)
  end
  rcall('HSET', P .. 'attempt:' .. token, unpack(words))
  set(id, 'attempt', token, 'starts', starts, 'state', 'active')
  rcall('ZADD', P .. 'states', ACTIVE + number, id)
  if due then
    rcall('HDEL', P .. 'task:' .. id, 'due')
    rcall('ZREM', P .. 'due', id)
  end
  return answer
end

function operations.take(token, lifetime, worker, host, pid, gpus)
  local earlier = AGAIN and also('attemptOf', token)
  if earlier then
    if earlier.outcome then return false end
    local _, answer = describe(earlier.task)
    return answer
  end
  lifetime = lifetime ~= '' and tonumber(lifetime) or nil
  local opts = cmsgpack.pack({token = token, lockDuration = lifetime and lifetime + 60000 or tonumber(LOCK), name = worker})
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
      local task = begin(id, token, {worker, host, pid, gpus}, lifetime)
      if task then return task end
    end
  end
  return false
end
`;
