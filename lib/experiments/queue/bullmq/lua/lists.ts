/** What can be seen. */
export const LISTS = `
local function row(id)
  local fields = rcall('HMGET', P .. 'task:' .. id, 'id', 'name', 'parameters', 'command', 'places', 'state', 'starts',
    'error', 'ended', 'source', 'sequence', 'number')
  return fields[1] and fields or false
end

local function rows(ids)
  local list = {}
  for i, id in ipairs(ids) do list[i] = row(id) end
  return list
end

function operations.open(create)
  if create == '1' then rcall('HSETNX', P .. 'settings', 'format', 1) end
  return rcall('HGET', P .. 'settings', 'format')
end

function operations.rows(...)
  return rows({...})
end

function operations.page(state, after, limit)
  local key = P .. (state == '' and 'arrival' or 'state:' .. state)
  return rows(rcall('ZRANGEBYSCORE', key, '(' .. after, '+inf', 'LIMIT', 0, limit))
end

function operations.match(word)
  local id = rcall('HGET', P .. 'names', word)
  local ids = {}
  if string.sub(word, 1, 2) == 't-' then
    for _, each in ipairs(rcall('ZRANGE', P .. 'arrival', 0, -1)) do
      if string.sub(each, 1, #word) == word then ids[#ids + 1] = each end
    end
  end
  if id then ids[#ids + 1] = id end
  return ids
end

function operations.counts(...)
  local counts = {}
  for i, state in ipairs({...}) do counts[i] = rcall('ZCARD', P .. 'state:' .. state) end
  return counts
end

function operations.nextTime()
  local waiting = rcall('ZCOUNT', P .. 'due', '(' .. NOW, '+inf')
  if waiting == 0 or waiting < rcall('ZCARD', P .. 'state:pending') then return false end
  return rcall('ZRANGEBYSCORE', P .. 'due', '(' .. NOW, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
end

function operations.completions(after, limit)
  local list = {}
  for i, id in ipairs(rcall('ZRANGEBYSCORE', P .. 'completions', '(' .. after, '+inf', 'LIMIT', 0, limit)) do
    list[i] = {row(id), (get(id, 'result'))}
  end
  return list
end

function operations.retracted()
  return rows(rcall('ZRANGE', P .. 'retracted', 0, -1))
end

function operations.attempts(living, id)
  local tokens = living == '1' and rcall('ZRANGE', P .. 'living', 0, -1) or rcall('LRANGE', P .. 'attempts:' .. id, 0, -1)
  local list = {}
  for _, token in ipairs(tokens) do
    local fields = rcall('HMGET', P .. 'attempt:' .. token, 'task', 'worker', 'host', 'pid', 'gpus', 'since', 'ended', 'outcome',
      'error', 'log', 'log_from', 'log_to', 'deadline')
    local lives = true
    if living == '1' then
      -- Those of whom there is no sign of life don't live, although nobody has noted it yet.
      if fields[13] then lives = tonumber(fields[13]) > now else lives = lockOf(fields[1]) == token end
    end
    if lives then
      fields[13] = token
      fields[14] = (get(fields[1], 'name'))
      list[#list + 1] = fields
    end
  end
  return list
end

function operations.paused()
  local pause = rcall('HGET', P .. 'settings', 'pause')
  return {pause, rcall('HEXISTS', B .. 'meta', 'paused')}
end

function operations.manager()
  local who = rcall('GET', P .. 'manager')
  return who and {who, string.format('%.0f', now + rcall('PTTL', P .. 'manager'))}
end
`;
