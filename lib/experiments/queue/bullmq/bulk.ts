import { seedOf, stringifyValue, type TaskSpec, taskId } from '../../task/index.ts';
import { type Enqueued, LEAST_NEEDS, MAX_BYTES, type Pause, type Queue, type Selection } from '../queue.ts';
import {
  commandText,
  conflict,
  conflictError,
  NO_COMMAND_TEXT,
  phaseInName,
  readPause,
  readTime,
  taskName,
} from '../records.ts';
import type { RedisConnection } from './connection.ts';

/** Tasks per operation, at most: others wait for some ten milliseconds at most. */
const BATCH = 500;

/** The methods of a queue that change many tasks, in operations of some tasks each, and its pause. */
export function bulkMethods(
  connection: RedisConnection,
): Pick<
  Queue,
  | 'enqueue'
  | 'importResults'
  | 'retry'
  | 'cancel'
  | 'giveUp'
  | 'forgetRetracted'
  | 'pause'
  | 'resume'
  | 'paused'
> {
  return {
    enqueue: (tasks, options = {}) => enqueue(connection, tasks, options),

    async importResults(rows) {
      const imported: boolean[] = [];
      let words: string[] = [];
      let size = 0;
      const send = async () => {
        const answers = await connection.call<number[]>('importResults', ...words);
        imported.push(...answers.map((answer) => answer === 1));
        words = [];
        size = 0;
      };
      for (const { id, result } of rows) {
        const text = stringifyValue(result);
        if (words.length === 2 * BATCH || (words.length > 0 && size + text.length > MAX_BYTES)) await send();
        words.push(id, text);
        size += text.length;
      }
      if (words.length > 0) await send();
      return imported;
    },

    retry: (selection) => changeSelected(connection, 'retry', selection),
    cancel: (selection) => changeSelected(connection, 'cancel', selection),

    giveUp: (selection) => changeSelected(connection, 'giveUp', selection),

    async forgetRetracted(ids) {
      for (let from = 0; from < ids.length; from += BATCH) {
        await connection.call('forget', ...ids.slice(from, from + BATCH));
      }
    },

    async pause(by, message) {
      const pause: Pause = { by, message, since: Date.now() };
      await connection.call('pause', JSON.stringify(pause), by);
    },

    async resume() {
      await connection.call('resume');
    },

    async paused() {
      const [text, since] = await connection.call<[string | null, string | null]>('paused');
      if (text !== null) return readPause(text);
      return since === null
        ? null
        : { by: 'person', message: 'paused in a dashboard of BullMQ', since: readTime(since) ?? Date.now() };
    },
  };
}

async function enqueue(
  connection: RedisConnection,
  tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
  { replaceCommands = false, needs = {}, signal }: Parameters<Queue['enqueue']>[1] & {},
): Promise<Enqueued> {
  const total: Enqueued = { added: 0, known: 0, placed: 0 };
  /** Tasks of earlier batches, if commands may be replaced: two tasks of one sweep must not replace each other's. */
  const seen = replaceCommands ? new Set<string>() : null;
  const send = async (words: readonly string[]) => {
    const { gpus = '', memory = '' } = needs;
    const options = [replaceCommands ? 1 : 0, gpus, memory];
    const answer = await connection.call<(string | number)[]>('enqueue', ...options, ...words);
    const [kind, ...rest] = answer;
    if (kind === 'conflicts') throw refusal(rest);
    const [added, known, placed] = rest as [number, number, number];
    total.added += added;
    total.known += known;
    total.placed += placed;
  };
  /** The batch that Redis has while the next one is prepared. */
  let sent: Promise<void> = Promise.resolve();
  let ids: string[] = [];
  let words: string[] = [];
  let size = 0;
  const add = (spec: TaskSpec) => {
    const id = taskId(spec.parameters);
    const described = describe(spec);
    for (const word of described) size += word.length;
    words.push(id, ...described, seen?.has(id) ? '1' : '0');
    ids.push(id);
  };
  const dispatch = async () => {
    for (const id of ids) seen?.add(id);
    const batch = words;
    ids = [];
    words = [];
    size = 0;
    await sent;
    signal?.throwIfAborted();
    sent = send(batch);
    sent.catch(() => {}); // it is thrown by the next one, or at the end
  };
  try {
    for await (const spec of tasks) {
      add(spec);
      if (ids.length === BATCH || size > MAX_BYTES) await dispatch();
    }
    if (ids.length > 0) await dispatch();
  } finally {
    await sent;
  }
  return total;
}

function describe(spec: TaskSpec): string[] {
  const { parameters, command } = spec;
  const phase = phaseInName(spec.phase);
  // The script has the counter.
  const suffix = taskName('', 0, seedOf(parameters)).slice('_0'.length);
  const destination = JSON.stringify([spec.phase, spec.outputDirectory]);
  return [stringifyValue(parameters), commandText(command), phase, suffix, destination, spec.rerun ?? ''];
}

function refusal([count, ...words]: (string | number)[]): Error {
  const conflicts: string[] = [];
  for (let index = 0; index < words.length; index += 3) {
    const [name, known, other] = words.slice(index, index + 3) as [string, string, string];
    conflicts.push(conflict(name, known, other));
  }
  return conflictError(conflicts, count as number);
}

/** @returns the names of the tasks that were changed */
async function changeSelected(
  connection: RedisConnection,
  action: 'retry' | 'cancel' | 'giveUp',
  selection: Selection | 'all',
): Promise<string[]> {
  const names: string[] = [];
  if (selection !== 'all' && 'ids' in selection) {
    for (let from = 0; from < selection.ids.length; from += BATCH) {
      const ids = selection.ids.slice(from, from + BATCH);
      names.push(...(await connection.call<string[]>('select', action, ...ids)));
    }
    return [...new Set(names)];
  }
  const state = selection === 'all' ? '' : selection.state;
  for (let after = '0'; ; ) {
    const answer = await connection.call<[string, string[]]>('selectState', action, state, after, BATCH);
    const [last, some] = answer;
    names.push(...some);
    if (last === '0') return names;
    after = last;
  }
}

/** The Lua of `enqueue REPLACE GPUS MEMORY (ID PARAMETERS COMMAND PHASE SUFFIX PLACE RERUN EARLIER)…`: adds all, or none and answers the conflicts. */
export const ENQUEUE = `
-- A phase a and one that is called a_1 can come to the same name: then the next number has to do.
local function nameAll(tasks, isTaken)
  local names, counters, used = {}, {}, {}
  for i, task in ipairs(tasks) do
    local phase = task.phase
    local counter = counters[phase] or tonumber(rcall('HGET', P .. 'phases', phase) or 0) or 0
    local name
    repeat
      name = phase .. '_' .. string.format('%.0f', counter) .. task.suffix
      counter = counter + 1
    until not used[name] and not isTaken(name)
    used[name] = true
    names[i] = name
    counters[phase] = counter
  end
  return names, counters
end

local function add(tasks)
  local names, counters = nameAll(tasks, function() return false end)
  for _, known in ipairs(rcall('HMGET', P .. 'names', unpack(names))) do
    if known then
      names, counters = nameAll(tasks, function(name) return rcall('HEXISTS', P .. 'names', name) == 1 end)
      break
    end
  end
  local last = rcall('HINCRBY', P .. 'settings', 'tasks', #tasks)
  local named, arrived = {}, {}
  for i, task in ipairs(tasks) do
    local id, name, number = task.id, names[i], last - #tasks + i
    named[2 * i - 1], named[2 * i] = name, id
    arrived[2 * i - 1], arrived[2 * i] = number, id
    -- What changes is found sooner in front.
    set(id, 'state', 'pending', 'starts', '0', 'number', number, 'name', name, 'parameters', task.parameters,
      'command', task.command, 'places', task.places)
    addJob(id, 2, name, task.parameters)
  end
  rcall('HSET', P .. 'names', unpack(named))
  -- The score of a pending one is its number.
  rcall('ZADD', P .. 'states', unpack(arrived))
  for phase, counter in pairs(counters) do rcall('HSET', P .. 'phases', phase, counter) end
end

local NO_COMMAND = '${NO_COMMAND_TEXT}'

-- A damaged one is none.
local function isCommand(text)
  local ok, command = pcall(cjson.decode, text)
  if not ok or type(command) ~= 'table' then return false end
  if type(command.shell) == 'string' then return true end
  if type(command.words) ~= 'table' then return false end
  for _, word in ipairs(command.words) do if type(word) ~= 'string' then return false end end
  return true
end

-- gpus, memory: '' where it stays as it is. Answers whether anything has changed.
local function setNeeds(id, gpus, memory)
  local before = rcall('HGET', P .. 'needs', id)
  local least = '${LEAST_NEEDS.gpus} ${LEAST_NEEDS.memory}'
  local most, each = string.match(before or least, '^(%d+) (%d+)$')
  local needs = (gpus ~= '' and gpus or most or '1') .. ' ' .. (memory ~= '' and memory or each or '0')
  if needs == (before or least) then return false end
  if before and rcall('HINCRBY', P .. 'kinds', before, -1) < 1 then rcall('HDEL', P .. 'kinds', before) end
  if needs == least then
    rcall('HDEL', P .. 'needs', id)
  else
    rcall('HSET', P .. 'needs', id, needs)
    rcall('HINCRBY', P .. 'kinds', needs, 1)
  end
  return true
end

function operations.enqueue(replace, gpus, memory, ...)
  local words, ids = {...}, {}
  for i = 1, #words, 8 do ids[#ids + 1] = words[i] end
  local numbers = rcall('ZMSCORE', P .. 'states', unpack(ids))
  local commands, conflicts, found = {}, {}, {}
  for i = 1, #words, 8 do
    local id, command, phase, earlier = words[i], words[i + 2], words[i + 3], words[i + 7] == '1'
    local known, name = commands[id], phase
    if not known and numbers[(i + 7) / 8] then
      local current, its, state, places = get(id, 'command', 'name', 'state', 'places')
      known, name = current or NO_COMMAND, its or id
      found[id] = {current = known, state = state, places = places or ''}
    end
    local differs = known and known ~= NO_COMMAND and command ~= NO_COMMAND and known ~= command and isCommand(known)
    if differs and (replace ~= '1' or earlier or commands[id]) then
      conflicts[#conflicts + 1] = name
      conflicts[#conflicts + 1] = known
      conflicts[#conflicts + 1] = command
    end
    if command ~= NO_COMMAND then commands[id] = command end
  end
  if #conflicts > 0 then return {'conflicts', #conflicts / 3, unpack(conflicts, 1, math.min(#conflicts, 9))} end

  local known, placed, given, fresh = 0, 0, 0, {}
  local reruns = {}
  for i = 1, #words, 8 do
    local id, parameters, command, phase, suffix, destination, rerun =
      words[i], words[i + 1], words[i + 2], words[i + 3], words[i + 4], words[i + 5], words[i + 6]
    if rerun ~= '' then reruns[id] = rerun end
    local task = found[id]
    if not task then
      task = {id = id, parameters = parameters, command = command, phase = phase, suffix = suffix, places = destination}
      fresh[#fresh + 1] = task
      found[id] = task
    else
      known = known + 1
      if command ~= NO_COMMAND and task.command == NO_COMMAND then
        task.command = command
      elseif command ~= NO_COMMAND and task.current and task.current ~= command and
        (task.current == NO_COMMAND or (task.state ~= 'active' and task.state ~= 'completed')) then
        set(id, 'command', command)
        given = given + 1
      end
      if not string.find('\\n' .. task.places .. '\\n', '\\n' .. destination .. '\\n', 1, true) then
        task.places = task.places .. '\\n' .. destination
        -- Those of new ones are written with them.
        if task.current then set(id, 'places', task.places) end
        placed = placed + 1
      end
    end
  end
  if #fresh > 0 then add(fresh) end
  for id, rerun in pairs(reruns) do
    if rerun == 'never' then set(id, 'once', '1') else rcall('HDEL', P .. 'task:' .. id, 'once') end
  end
  if gpus ~= '' or memory ~= '' then
    for id in pairs(found) do
      if setNeeds(id, gpus, memory) then given = given + 1 end
    end
  end
  if #fresh + placed + given > 0 then bump() end
  return {'done', #fresh, known, placed}
end
`;

/** The Lua of the other methods, and of leadership. Ids may be names too. */
export const BULK = `
local function resolve(word)
  if rcall('EXISTS', P .. 'task:' .. word) == 1 then return word end
  return rcall('HGET', P .. 'names', word)
end

local function cancel(id)
  local state, token = get(id, 'state', 'attempt')
  if state ~= 'pending' and state ~= 'active' then return false end
  set(id, 'ended', NOW)
  move(id, 'cancelled')
  if state == 'active' and token then revoke(id, token, 'cancelled') else removeJob(id) end
  return true
end

local function retry(id)
  local state, number = get(id, 'state', 'number')
  number = numberOf(id, number)
  if state == 'pending' or state == 'active' then return false end
  if state == 'completed' then
    local by, ended = completedBy(id)
    local without = get(id, 'without')
    if without then rcall('HINCRBY', P .. 'without', without, -1) end
    if by then rcall('HSET', P .. 'attempt:' .. by, 'outcome', 'completed', 'ended', ended) end
    rcall('ZADD', P .. 'retracted', number, id)
    rcall('ZREM', P .. 'completions', id)
    -- A result that comes late would be one of before.
    for _, token in ipairs(tokensOf(id)) do
      if redis.pcall('HGET', P .. 'attempt:' .. token, 'outcome') == 'lost' then rcall('HDEL', P .. 'attempt:' .. token, 'deadline') end
    end
  end
  rcall('HDEL', P .. 'task:' .. id, 'due', 'error', 'ended', 'sequence', 'source', 'result', 'by', 'without')
  set(id, 'starts', 0, 'retried', NOW)
  move(id, 'pending')
  if not lockOf(id) then
    replaceJob(id, 'pending', 2)
  end
  return true
end

-- An attempt whose lock stays, and that wasn't heard of for long.
local function giveUp(id)
  local state, token = get(id, 'state', 'attempt')
  if not token or lockOf(id) ~= token then return false end
  local once, seen = unpack(rcall('HMGET', P .. 'attempt:' .. token, 'once', 'seen'))
  if not once or NOW - (tonumber(seen) or 0) <= tonumber(LOCK) then return false end
  if state == 'active' then
    endLost(id, token, 'was given up by a person', token)
  else
    release(id, token, true)
  end
  return true
end

local actions = {cancel = cancel, retry = retry, giveUp = giveUp}

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
  local ids = listed(state, after, limit)
  local names, last = {}, 0
  for _, id in ipairs(ids) do
    last = string.format('%.0f', numberOf(id, (get(id, 'number'))))
    if actions[action](id) then names[#names + 1] = (get(id, 'name')) or id end
  end
  if #names > 0 then bump() end
  return {#ids < tonumber(limit) and '0' or last, names}
end

function operations.importResults(...)
  local words, imported = {...}, {}
  for i = 1, #words, 2 do
    local id = words[i]
    local state, number, due, why = get(id, 'state', 'number', 'due', 'error')
    local good = state and state ~= 'active' and state ~= 'completed' and not rcall('ZSCORE', P .. 'retracted', id)
    if good then
      completeTask(id, words[i + 1], number, due, why, 'source', 'table')
      removeJob(id)
      bump()
    end
    imported[#imported + 1] = good and 1 or 0
  end
  return imported
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
