import { NO_COMMAND_TEXT } from '../../commands.ts';

/** `enqueue REPLACE (ID PARAMETERS COMMAND PHASE SUFFIX PLACE EARLIER)…`: all of them, or none and the conflicts. */
export const ARRIVAL = `
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
    also('addTicket', id, 2, name, task.parameters)
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

function operations.enqueue(replace, ...)
  local words, ids = {...}, {}
  for i = 1, #words, 7 do ids[#ids + 1] = words[i] end
  local numbers = rcall('ZMSCORE', P .. 'states', unpack(ids))
  local commands, conflicts, found = {}, {}, {}
  for i = 1, #words, 7 do
    local id, command, phase, earlier = words[i], words[i + 2], words[i + 3], words[i + 6] == '1'
    local known, name = commands[id], phase
    if not known and numbers[(i + 6) / 7] then
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
  for i = 1, #words, 7 do
    local id, parameters, command, phase, suffix, place =
      words[i], words[i + 1], words[i + 2], words[i + 3], words[i + 4], words[i + 5]
    local task = found[id]
    if not task then
      task = {id = id, parameters = parameters, command = command, phase = phase, suffix = suffix, places = place}
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
      if not string.find('\\n' .. task.places .. '\\n', '\\n' .. place .. '\\n', 1, true) then
        task.places = task.places .. '\\n' .. place
        -- Those of new ones are written with them.
        if task.current then set(id, 'places', task.places) end
        placed = placed + 1
      end
    end
  end
  if #fresh > 0 then add(fresh) end
  if #fresh + placed + given > 0 then bump() end
  return {'done', #fresh, known, placed}
end
`;
