/** What people do with tasks. Ids may be names too. */
export const SELECTIONS = `
local function resolve(word)
  if rcall('EXISTS', P .. 'task:' .. word) == 1 then return word end
  return rcall('HGET', P .. 'names', word)
end

local function cancel(id)
  local state, token = get(id, 'state', 'attempt')
  if state ~= 'pending' and state ~= 'active' then return false end
  set(id, 'ended', NOW)
  also('move', id, 'cancelled')
  if state == 'active' and token then also('revoke', id, token, 'cancelled') else also('removeTicket', id) end
  return true
end

local function retry(id)
  local state, number = get(id, 'state', 'number')
  number = also('numberOf', id, number)
  if state == 'pending' or state == 'active' then return false end
  if state == 'completed' then
    local by, ended = also('completedBy', id)
    local without = get(id, 'without')
    if without then rcall('HINCRBY', P .. 'without', without, -1) end
    if by then rcall('HSET', P .. 'attempt:' .. by, 'outcome', 'completed', 'ended', ended) end
    rcall('ZADD', P .. 'retracted', number, id)
    rcall('ZREM', P .. 'completions', id)
    -- A result that comes late would be one of before.
    for _, token in ipairs(also('tokensOf', id)) do
      if redis.pcall('HGET', P .. 'attempt:' .. token, 'outcome') == 'lost' then rcall('HDEL', P .. 'attempt:' .. token, 'deadline') end
    end
  end
  rcall('HDEL', P .. 'task:' .. id, 'due', 'error', 'ended', 'sequence', 'source', 'result', 'by', 'without')
  set(id, 'starts', 0, 'retried', NOW)
  also('move', id, 'pending')
  if not also('lockOf', id) then
    also('replaceTicket', id, 'pending', 2)
  end
  return true
end

local actions = {cancel = cancel, retry = retry}

function operations.select(action, ...)
  local names, seen = {}, {}
  for _, word in ipairs({...}) do
    local id = resolve(word)
    if id and not seen[id] then
      seen[id] = true
      if actions[action](id) then names[#names + 1] = (get(id, 'name')) or id end
    end
  end
  if #names > 0 then bump() end
  return names
end

-- A portion: those behind the number AFTER. Answers the last number, or 0 at the end, and names.
function operations.selectState(action, state, after, limit)
  local ids = also('listed', state, after, limit)
  local names, last = {}, 0
  for _, id in ipairs(ids) do
    last = string.format('%.0f', also('numberOf', id, (get(id, 'number'))))
    if actions[action](id) then names[#names + 1] = (get(id, 'name')) or id end
  end
  if #names > 0 then bump() end
  return {#ids < tonumber(limit) and '0' or last, names}
end

function operations.importResults(...)
  local words, adopted = {...}, {}
  for i = 1, #words, 2 do
    local id = words[i]
    local state, number, due, why = get(id, 'state', 'number', 'due', 'error')
    local good = state and state ~= 'active' and state ~= 'completed' and not rcall('ZSCORE', P .. 'retracted', id)
    if good then
      completeTask(id, words[i + 1], number, due, why, 'source', 'table')
      also('removeTicket', id)
      bump()
    end
    adopted[#adopted + 1] = good and 1 or 0
  end
  return adopted
end

function operations.forget(...)
  for _, id in ipairs({...}) do rcall('ZREM', P .. 'retracted', id) end
  bump()
  return 1
end

function operations.pause(pause, by)
  -- BullMQ gives nothing out then, which somebody in a dashboard may have changed.
  if rcall('HEXISTS', B .. 'meta', 'paused') == 0 then bull('pause', {}) end
  local before = rcall('HGET', P .. 'settings', 'pausedBy')
  -- What a person has said stands, and what was said first.
  if before == 'person' or before == by then return 0 end
  rcall('HSET', P .. 'settings', 'pause', pause, 'pausedBy', by)
  bump()
  return 1
end

function operations.resume()
  rcall('HDEL', P .. 'settings', 'pause', 'pausedBy', 'pausedOutside')
  bull('resume', {})
  bump()
  return 1
end

-- dead: one that is known to manage no longer, and '' if none is
function operations.manage(who, dead)
  if dead ~= '' and rcall('GET', P .. 'manager') == dead then rcall('DEL', P .. 'manager') end
  local done = rcall('SET', P .. 'manager', who, 'PX', LOCK, 'NX')
  if done then bump() end
  return done and 1 or 0
end

function operations.release(who)
  if rcall('GET', P .. 'manager') == who then
    rcall('DEL', P .. 'manager')
    bump()
  end
  return 1
end
`;
