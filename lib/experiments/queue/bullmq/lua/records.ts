/**
 * Functions that all operations are made of. Keys below `P`:
 *
 * - `task:ID`: a hash as SQLite has the row; `attempt` is the token of its last one, `by` of the one that completed it
 * - `arrival`, `state:STATE`: ids by number of arrival. `names`: ids by name. `phases`: counters
 * - `attempt:TOKEN`: a hash; `attempts:ID`: the tokens of a task in order; `living`: those without an outcome; `deadlines`
 * - `completions`: ids by sequence; `due`: ids by time; `retracted`: ids by number
 * - `settings`: counters, `pause`, `format`; `version` grows with every change. `manager`: who manages, until it expires
 *
 * BullMQ's job has the id of the task. It waits, prioritised, while the task is pending, and is active and locked with the token as long as
 * something of an attempt may live, whatever has become of the task: that is why a task isn't given out again too early.
 */
export const RECORDS = `
local MOST_STARTS = 3
local clock = rcall('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local NOW = string.format('%.0f', now)

local function get(id, ...)
  return unpack(rcall('HMGET', P .. 'task:' .. id, ...))
end

local function set(id, ...)
  rcall('HSET', P .. 'task:' .. id, ...)
end

local function bump()
  return rcall('HINCRBY', P .. 'settings', 'version', 1)
end

local function move(id, to)
  local number, from = get(id, 'number', 'state')
  if from ~= to then
    rcall('ZREM', P .. 'state:' .. from, id)
    rcall('ZADD', P .. 'state:' .. to, number, id)
    set(id, 'state', to)
  end
  if to ~= 'pending' then rcall('ZREM', P .. 'due', id) end
end

-- BullMQ's job

-- As dashboards can read it: JSON has no NaN and no Infinity, so they become texts.
local function plainJSON(text)
  if not (string.find(text, 'NaN', 1, true) or string.find(text, 'Infinity', 1, true)) then return text end
  local pieces, from, at = {}, 1, 1
  while true do
    local start, stop = string.find(text, '["NI]', at)
    if not start then break end
    if string.sub(text, start, start) == '"' then
      -- to its end
      at = start + 1
      while true do
        local mark = string.find(text, '["\\\\]', at)
        at = mark + 1
        if string.sub(text, mark, mark) == '"' then break end
        at = at + 1
      end
    else
      stop = start + (string.sub(text, start, start) == 'N' and 2 or 7)
      if string.sub(text, start - 1, start - 1) == '-' then start = start - 1 end
      pieces[#pieces + 1] = string.sub(text, from, start - 1) .. '"' .. string.sub(text, start, stop) .. '"'
      from, at = stop + 1, stop + 1
    end
  end
  return table.concat(pieces) .. string.sub(text, from)
end

local function addTicket(id, priority, name, parameters)
  if not name then name, parameters = get(id, 'name', 'parameters') end
  local data = plainJSON(parameters)
  bull.add({
    ['@JOB@'] = cmsgpack.pack({B, id, name, now}),
    ['@DATA@'] = data,
    ['@OPTS@'] = cmsgpack.pack({priority = priority, attempts = 1000000}),
  })
end

local function lockOf(id)
  return rcall('GET', B .. id .. ':lock')
end

-- Unless something of an attempt may live.
local function removeTicket(id)
  if not lockOf(id) then bull.remove({['@ID@'] = id}) end
end

-- Nothing of the attempt lives any longer: its job goes where the task's state wants it.
-- own: the task was the attempt's until now, whatever has become of the lock
local function release(id, token, own, priority, delay)
  local lock = lockOf(id)
  if (lock and lock ~= token) or (not lock and not own) then return end
  rcall('DEL', B .. id .. ':lock')
  rcall('SREM', B .. 'stalled', id)
  local state, starts, result, why = get(id, 'state', 'starts', 'result', 'error')
  priority = priority or 2 * tonumber(starts) + 2
  local values = {['@ID@'] = id, ['@NOW@'] = NOW, ['@TOKEN@'] = '0'}
  local answer
  if state == 'pending' then
    if rcall('EXISTS', B .. id) == 1 then rcall('HSET', B .. id, 'priority', priority) end
    if delay and delay > 0 then
      values['@DELAY@'] = string.format('%.0f', delay)
      answer = bull.delay(values)
    else
      answer = bull.retry(values)
    end
  elseif state == 'completed' then
    values['@VALUE@'] = result and #result < 4096 and plainJSON(result) or 'null'
    answer = bull.completed(values)
  else
    -- A cancelled one may have failed before.
    values['@VALUE@'] = state == 'failed' and why or state
    -- Where dashboards keep the lines of a text.
    if rcall('EXISTS', B .. id) == 1 then
      local text = values['@VALUE@']
      rcall('HSET', B .. id, 'stacktrace', string.find(text, '\\n', 1, true) and cjson.encode({text}) or '[]')
    end
    answer = bull.failed(values)
  end
  if type(answer) == 'number' and answer < 0 then
    bull.remove({['@ID@'] = id})
    if state == 'pending' then addTicket(id, priority) end
  end
end

-- Tasks and attempts

local function attemptOf(token)
  local found = rcall('HMGET', P .. 'attempt:' .. token, 'task', 'outcome', 'deadline', 'result', 'error', 'worker', 'host', 'pid')
  if not found[1] then return nil end
  return {task = found[1], outcome = found[2], deadline = found[3], result = found[4], error = found[5],
    worker = found[6], host = found[7], pid = found[8]}
end

local function endAttempt(token, outcome, why, deadline)
  local key = P .. 'attempt:' .. token
  rcall('HSET', key, 'outcome', outcome, 'ended', now)
  if why then rcall('HSET', key, 'error', why) end
  rcall('ZREM', P .. 'living', token)
  if deadline then rcall('ZREM', P .. 'deadlines', token) end
end

-- Somebody else says that the task isn't this attempt's any longer. Who gives no sign of life won't say when it is gone.
local function revoke(id, token, why)
  local attempt = attemptOf(token)
  if not attempt or attempt.outcome then return end
  endAttempt(token, 'cancelled', why, attempt.deadline)
  if attempt.deadline then release(id, token, false) end
end

local function completeTask(id, source, result, token)
  local sequence = rcall('HINCRBY', P .. 'settings', 'sequence', 1)
  local number, from, due, why = get(id, 'number', 'state', 'due', 'error')
  set(id, 'state', 'completed', 'sequence', sequence, 'source', source, 'result', result, 'ended', now, 'by', token)
  if due or why then
    rcall('HDEL', P .. 'task:' .. id, 'due', 'error')
    rcall('ZREM', P .. 'due', id)
  end
  rcall('ZADD', P .. 'completions', sequence, id)
  rcall('ZREM', P .. 'state:' .. from, id)
  rcall('ZADD', P .. 'state:completed', number, id)
end

local function failTask(id, why, again)
  local starts = tonumber((get(id, 'starts')))
  set(id, 'error', why)
  if again and starts < MOST_STARTS then
    move(id, 'pending')
    return 'pending'
  end
  set(id, 'ended', now)
  move(id, 'failed')
  return 'failed'
end

local function endLost(id, token, how)
  local attempt = attemptOf(token)
  local why = 'worker ' .. attempt.worker .. ' (PID ' .. attempt.pid .. ' on ' .. attempt.host .. ') ' .. how
  endAttempt(token, 'lost', why, attempt.deadline)
  failTask(id, why, true)
end

local function checkStalled()
  local stalled = bull.moveStalled({['@NOW@'] = NOW, ['@INTERVAL@'] = INTERVAL})
  if #stalled > 0 then bump() end
  return #stalled
end
`;
