/** The clock of Redis, in ms: no other clock is compared with it. */
export const CLOCK = `
local clock = rcall('TIME')
local NOW = clock[1] .. string.sub('00000' .. clock[2], -6, -4)
`;

/**
 * Lua functions that all operations are made of. Keys below `P`:
 *
 * - `task:ID`: a hash with the fields of SQLite's row. `attempt` is the token of its last attempt, which has completed it unless `by` is
 *   another one's, or `source` is a table. `retried`: when somebody forgave its starts
 * - `states`: ids by state, and in each by number of arrival. `names`: ids by name. `phases`: counters
 * - `needs`: what tasks need, by id, as `GPUS MEMORY`, of those that need more than a GPU; `kinds`: how many need the same
 *   `once`: it isn't started again by itself; of an attempt: its lock stays until it is released, and `seen` is when it was heard of
 * - `attempt:TOKEN`: a hash. `begun` has time, task, and worker in JSON; `before` is the token of the task's attempt before; `silent`:
 *   since when its lock is known to have expired. `deadlines`: of attempts that have a lifetime
 * - `without`: how many tasks were completed without a result, by host and worker
 * - `completions`: ids by sequence; `due`: ids by time; `retracted`: ids by number
 * - `settings`: counters, `pause`, `format`. `version` grows with every change except starts and completions, which can be told by their
 *   number. `manager`: the process that manages, until it expires
 *
 * The attempt of an active task lives, as far as anybody knows: it is the one without an outcome. An attempt that has completed its task
 * has no outcome either, as the task tells it; it gets one when the task is retried.
 *
 * BullMQ's job has the id of the task. It waits, prioritised, while the task is pending. It is active and locked with the token while
 * anything of an attempt may live, whatever has become of the task: so a task isn't given out again too early.
 *
 * Calls of Redis cost more than what they do, so there are few of them.
 */
const BASICS = `
-- Nothing, where a record is of another kind.
local function get(id, ...)
  local fields = redis.pcall('HMGET', P .. 'task:' .. id, ...)
  if not fields.err then return unpack(fields) end
end

local function set(id, ...)
  rcall('HSET', P .. 'task:' .. id, ...)
end

local function bump()
  rcall('HINCRBY', P .. 'settings', 'version', 1)
end

local function endAttempt(token, outcome, why, deadline)
  if why then
    rcall('HSET', P .. 'attempt:' .. token, 'outcome', outcome, 'ended', NOW, 'error', why)
  else
    rcall('HSET', P .. 'attempt:' .. token, 'outcome', outcome, 'ended', NOW)
  end
  if deadline then rcall('ZREM', P .. 'deadlines', token) end
end

-- NaN and Infinity, outside of texts, become texts.
local function quoteNumbers(text)
  local pieces, from, at = {}, 1, 1
  while true do
    local start, stop = string.find(text, '["NI]', at)
    if not start then break end
    if string.sub(text, start, start) == '"' then
      -- to its end
      at = start + 1
      while true do
        local mark = string.find(text, '["\\\\]', at)
        if not mark then return 'null' end -- it isn't JSON
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
`;

const PLAIN_JSON = `
-- As dashboards can read it: JSON has no NaN and no Infinity.
local function plainJSON(text)
  if not (string.find(text, 'NaN', 1, true) or string.find(text, 'Infinity', 1, true)) then return text end
  return lazily('quoteNumbers', text)
end
`;

const JOBS = `
local function addJob(id, priority, name, parameters)
  if not name then name, parameters = get(id, 'name', 'parameters') end
  bull('add', {
    job = {B, id, name or id, tonumber(NOW)},
    data = plainJSON(parameters or '{}'),
    opts = {priority = priority, attempts = 1000000},
  })
end

-- A job that goes nowhere else.
local function replaceJob(id, state, priority)
  bull('remove', {id = id})
  if state == 'pending' then addJob(id, priority) end
end
`;

const COMPLETE = `
-- The task of a living attempt is completed.
local function completeJob(id, result)
  rcall('DEL', B .. id .. ':lock')
  local value = result and #result < 4096 and plainJSON(result) or 'null'
  if bull('completed', {id = id, value = value}) < 0 then lazily('replaceJob', id, 'completed') end
end

-- number, due, why: of the task. The rest are further fields: what isn't said of a completed task is that its last attempt did it.
local function completeTask(id, result, number, due, why, ...)
  local key = P .. 'task:' .. id
  local sequence = string.format('%d', rcall('HINCRBY', P .. 'settings', 'sequence', '1'))
  rcall('HSET', key, 'state', 'completed', 'sequence', sequence, 'result', result, 'ended', NOW, ...)
  if due or why then
    rcall('HDEL', key, 'due', 'error')
    rcall('ZREM', P .. 'due', id)
  end
  rcall('ZADD', P .. 'completions', sequence, id)
  rcall('ZADD', P .. 'states', 2 * 2 ^ 40 + (tonumber(number) or rcall('ZSCORE', P .. 'states', id) % 2 ^ 40), id)
end
`;

const OTHERS = `
local MAX_STARTS = 3

-- In 'states'; the number is added.
local SCORES = {pending = 0, active = 2 ^ 40, completed = 2 * 2 ^ 40, failed = 3 * 2 ^ 40, cancelled = 4 * 2 ^ 40}

-- Those behind the number.
local function behind(state, number)
  return string.format('(%.0f', SCORES[state] + number), string.format('(%.0f', SCORES[state] + 2 ^ 40)
end

local function count(state)
  return rcall('ZCOUNT', P .. 'states', behind(state, 0))
end

-- Ids of those behind the number AFTER, in the order of arrival. State '': all; limit -1: no limit.
local function listed(state, after, limit)
  local found = {}
  for each, score in pairs(SCORES) do
    if state == each or state == '' then
      local from, to = behind(each, tonumber(after))
      local part = rcall('ZRANGEBYSCORE', P .. 'states', from, to, 'WITHSCORES', 'LIMIT', 0, limit)
      for i = 1, #part, 2 do found[#found + 1] = {id = part[i], number = part[i + 1] - score} end
    end
  end
  table.sort(found, function(a, b) return a.number < b.number end)
  limit = tonumber(limit)
  local ids, numbers = {}, {}
  for i = 1, limit < 0 and #found or math.min(#found, limit) do ids[i], numbers[i] = found[i].id, found[i].number end
  return ids, numbers
end

local function index(id, state, number)
  rcall('ZADD', P .. 'states', SCORES[state] + number, id)
end

-- By its record or, where that is damaged, by its place.
local function numberOf(id, number)
  return tonumber(number) or (rcall('ZSCORE', P .. 'states', id) or 0) % 2 ^ 40
end

local function startsOf(starts)
  return tonumber(starts) or 0
end

local function move(id, to)
  local number, from = get(id, 'number', 'state')
  number = numberOf(id, number)
  if from ~= to then
    index(id, to, number)
    set(id, 'state', to)
  end
  if to ~= 'pending' then rcall('ZREM', P .. 'due', id) end
end

local function lockOf(id)
  return rcall('GET', B .. id .. ':lock')
end

-- Unless something of an attempt may live.
local function removeJob(id)
  if not lockOf(id) then bull('remove', {id = id}) end
end

-- Whether so many GPUs with so much memory are enough for what a task needs.
local function isEnough(needs, gpus, memory)
  local most, each = string.match(needs or '', '^(%d+) (%d+)$')
  return not most or (tonumber(most) <= gpus and tonumber(each) <= memory)
end

-- Whether they are enough for all tasks.
local function suffices(gpus, memory)
  for _, needs in ipairs(rcall('HKEYS', P .. 'kinds')) do
    if not isEnough(needs, gpus, memory) then return false end
  end
  return true
end

-- Those for which they are enough. ids: 1000 at most
local function fitting(ids, gpus, memory)
  local found = {}
  local needs = #ids > 0 and rcall('HMGET', P .. 'needs', unpack(ids)) or {}
  for i, id in ipairs(ids) do
    if isEnough(needs[i], gpus, memory) then found[#found + 1] = id end
  end
  return found
end

-- Puts the next job for which they are enough before all others, where BullMQ takes it.
local function putFirst(gpus, memory)
  local from, size = 0, 10
  repeat
    local ids = rcall('ZRANGE', B .. 'prioritized', from, from + size - 1)
    local id = fitting(ids, gpus, memory)[1]
    if id then
      rcall('ZADD', B .. 'prioritized', 0, id)
      return true
    end
    from, size = from + #ids, 1000
  until #ids == 0
  -- BullMQ looks after those that have waited for their time only when it gives one out.
  for _, id in ipairs(fitting(rcall('ZRANGEBYSCORE', B .. 'delayed', 0, (NOW + 1) * 0x1000 - 1, 'LIMIT', 0, 1000), gpus, memory)) do
    rcall('ZREM', B .. 'delayed', id)
    rcall('HSET', B .. id, 'delay', 0)
    rcall('ZADD', B .. 'prioritized', 0, id)
    return true
  end
  -- Of those that somebody has moved in a dashboard, BullMQ gives out the first.
  return rcall('EXISTS', B .. 'wait') == 1
end

-- Pending tasks for which they aren't enough.
local function countLarger(gpus, memory)
  if suffices(gpus, memory) then return 0 end
  local larger, from = 0, 0
  local after, last = behind('pending', 0)
  repeat
    local ids = rcall('ZRANGEBYSCORE', P .. 'states', after, last, 'LIMIT', from, 1000)
    larger, from = larger + #ids - #fitting(ids, gpus, memory), from + #ids
  until #ids == 0
  return larger
end

-- Nothing of the attempt lives any longer: its job goes where the task's state wants it.
-- own: the task was the attempt's until now, whatever has become of the lock
local function release(id, token, own, priority, delay)
  local lock = lockOf(id)
  if (lock and lock ~= token) or (not lock and not own) then return end
  rcall('SREM', B .. 'stalled', id)
  local state, starts, result, why = get(id, 'state', 'starts', 'result', 'error')
  if state == 'completed' then return completeJob(id, result) end
  rcall('DEL', B .. id .. ':lock')
  priority = priority or 2 * startsOf(starts) + 2
  local answer
  if state ~= 'pending' then
    -- A cancelled one may have failed before.
    local value = state == 'failed' and why or state or 'damaged'
    -- Where dashboards keep the lines of a text.
    if rcall('EXISTS', B .. id) == 1 then
      rcall('HSET', B .. id, 'stacktrace', string.find(value, '\\n', 1, true) and cjson.encode({value}) or '[]')
    end
    answer = bull('failed', {id = id, value = value})
  else
    if rcall('EXISTS', B .. id) == 1 then rcall('HSET', B .. id, 'priority', priority) end
    if delay and delay > 0 then
      answer = bull('delay', {id = id, delay = string.format('%.0f', delay)})
    else
      answer = bull('retry', {id = id})
    end
  end
  if type(answer) == 'number' and answer < 0 then replaceJob(id, state, priority) end
end

-- The token of the attempt that has completed the task, and when.
local function completedBy(id)
  local state, source, by, last, ended = get(id, 'state', 'source', 'by', 'attempt', 'ended')
  if state == 'completed' and source ~= 'table' then return by or last, ended end
end

-- Since when, id of the task, worker.
local function begunOf(text)
  if text then return string.match(text, '^(%d+) (%S+) (.*)$') end
end

local function attemptOf(token)
  local fields = redis.pcall('HMGET', P .. 'attempt:' .. token, 'begun', 'outcome', 'deadline', 'result', 'error', 'once')
  if fields.err then return nil end
  local begun, outcome, deadline, result, why, once = unpack(fields)
  local since, id, worker = begunOf(begun)
  if not id then return nil end
  if not outcome and completedBy(id) == token then outcome = 'completed' end
  local ok, who = pcall(cjson.decode, worker)
  if not ok or type(who) ~= 'table' then who = {} end
  for i = 1, 3 do if type(who[i]) ~= 'string' and type(who[i]) ~= 'number' then who[i] = '?' end end
  return {task = id, outcome = outcome, deadline = tonumber(deadline), result = result, error = why, since = since, once = once,
    worker = who[1], host = who[2], pid = who[3]}
end

-- The last one first.
local function tokensOf(id)
  local tokens, token, seen = {}, (get(id, 'attempt')), {}
  while token and not seen[token] do
    tokens[#tokens + 1], seen[token] = token, true
    token = redis.pcall('HGET', P .. 'attempt:' .. token, 'before')
    if type(token) ~= 'string' then break end
  end
  return tokens
end

-- Somebody else says that the task isn't this attempt's any longer. Who gives no sign of life won't say when it is gone.
local function revoke(id, token, why)
  local attempt = attemptOf(token)
  if not attempt or attempt.outcome then return end
  endAttempt(token, 'cancelled', why, attempt.deadline)
  if attempt.deadline then release(id, token, false) end
end

local function failTask(id, why, again)
  local starts, once = get(id, 'starts', 'once')
  set(id, 'error', why)
  if again and not once and startsOf(starts) < MAX_STARTS then
    move(id, 'pending')
    return 'pending'
  end
  set(id, 'ended', NOW)
  move(id, 'failed')
  return 'failed'
end

-- holder: of the lock by now
local function endLost(id, token, how, holder)
  local attempt = token and attemptOf(token)
  local why = 'the record of its attempt is damaged'
  if attempt then
    why = 'worker ' .. attempt.worker .. ' (PID ' .. attempt.pid .. ' on ' .. attempt.host .. ') ' .. how
    endAttempt(token, 'lost', why, attempt.deadline)
  end
  failTask(id, why, true)
  release(id, holder, true)
  bump()
end

local function endOverdue()
  local tokens = rcall('ZRANGEBYSCORE', P .. 'deadlines', '-inf', NOW, 'LIMIT', 0, 100)
  for _, token in ipairs(tokens) do
    local attempt = attemptOf(token)
    if attempt then endLost(attempt.task, token, 'sent no message in time', token) end
    rcall('ZREM', P .. 'deadlines', token)
  end
  return #tokens
end

local function checkStalled()
  local stalled = bull('moveStalled', {})
  if #stalled > 0 then bump() end
  return #stalled
end

-- An attempt that was counted as lost is heard of after all: it was cut off, and that is not the task's fault.
local function excuse(token, attempt)
  if attempt.outcome ~= 'lost' or attempt.deadline or attempt.once then return end
  local id, key = attempt.task, P .. 'attempt:' .. token
  if rcall('HSETNX', key, 'excused', 1) == 0 then return end
  local starts, state, last, retried = get(id, 'starts', 'state', 'error', 'retried')
  -- Whoever has retried the task since has forgiven all starts already.
  if tonumber(retried) and tonumber(attempt.since) <= tonumber(retried) then return end
  set(id, 'starts', math.max(startsOf(starts) - 1, 0))
  if state ~= 'failed' or last ~= attempt.error then return end
  rcall('HDEL', P .. 'task:' .. id, 'ended')
  move(id, 'pending')
  if not lockOf(id) then replaceJob(id, 'pending', 2 * startsOf(starts)) end
end

-- The task is its own, or it gave no sign of life in time and the task has still no result.
local function mayComplete(attempt)
  if not attempt.outcome then return true end
  if attempt.outcome ~= 'lost' or not (attempt.deadline or attempt.once) then return false end
  local state = get(attempt.task, 'state')
  return state == 'pending' or state == 'active' or state == 'failed'
end
`;

/** All functions. */
export const FUNCTIONS = BASICS + direct(PLAIN_JSON) + JOBS + direct(COMPLETE) + OTHERS;

/** Functions for the usual completion, for scripts with {@link LAZY_FUNCTIONS}. */
export const COMPLETION = PLAIN_JSON + COMPLETE;

/**
 * `lazily('name', …)` calls one of {@link FUNCTIONS}, all of which are made at the first call. Redis makes a script's functions anew each
 * time it runs: not making them saves 8 to 12 % of its time for `take` and `complete`. Other operations need too many of them.
 */
export const LAZY_FUNCTIONS = `
local others
local function lazily(name, ...)
  if not others then
    ${FUNCTIONS}
    others = {${namesIn(FUNCTIONS)
      .map((name) => `${name} = ${name}`)
      .join(', ')}}
  end
  return others[name](...)
end
`;

function direct(lua: string): string {
  return lua.replaceAll(/\blazily\('(\w+)', /g, '$1(');
}

function namesIn(lua: string): string[] {
  return [...lua.matchAll(/^local function (\w+)/gm)].map(([, name]) => name as string);
}
