/** `enqueue REPLACE (ID PARAMETERS COMMAND PHASE SUFFIX PLACE EARLIER)…`: all of them, or none and the conflicts. */
export const ARRIVAL = `
function operations.enqueue(replace, ...)
  local words = {...}
  local commands, conflicts, found = {}, {}, {}
  for i = 1, #words, 7 do
    local id, command, phase, earlier = words[i], words[i + 2], words[i + 3], words[i + 6] == '1'
    local known, name = commands[id], phase
    if not known then
      local task = rcall('HMGET', P .. 'task:' .. id, 'command', 'name', 'state', 'places')
      known, name = task[1], task[2]
      found[id] = known and task
    end
    if known and known ~= command and (replace ~= '1' or earlier or commands[id]) then
      conflicts[#conflicts + 1] = name
      conflicts[#conflicts + 1] = known
      conflicts[#conflicts + 1] = command
    end
    commands[id] = command
  end
  if #conflicts > 0 then return {'conflicts', #conflicts / 3, unpack(conflicts, 1, math.min(#conflicts, 9))} end

  local added, known, placed = 0, 0, 0
  local number = tonumber(rcall('HGET', P .. 'settings', 'tasks') or 0)
  local counters = {}
  for i = 1, #words, 7 do
    local id, parameters, command, phase, suffix, place =
      words[i], words[i + 1], words[i + 2], words[i + 3], words[i + 4], words[i + 5]
    local task = found[id]
    if task then
      local current, state, places = task[1], task[3], task[4]
      known = known + 1
      if current ~= command and state ~= 'active' and state ~= 'completed' then set(id, 'command', command) end
      if not string.find('\\n' .. places .. '\\n', '\\n' .. place .. '\\n', 1, true) then
        task[4] = places .. '\\n' .. place
        set(id, 'places', task[4])
        placed = placed + 1
      end
    else
      local counter = counters[phase] or tonumber(rcall('HGET', P .. 'phases', phase) or 0)
      local name
      repeat
        -- A phase a and one that is called a_1 can come to the same name: then the next number has to do.
        name = phase .. '_' .. string.format('%.0f', counter) .. suffix
        counter = counter + 1
      until rcall('HSETNX', P .. 'names', name, id) == 1
      counters[phase] = counter
      number = number + 1
      set(id, 'number', number, 'id', id, 'name', name, 'parameters', parameters, 'command', command, 'places', place,
        'state', 'pending', 'starts', 0)
      rcall('ZADD', P .. 'arrival', number, id)
      rcall('ZADD', P .. 'state:pending', number, id)
      addTicket(id, 2, name, parameters)
      found[id] = {command, name, 'pending', place}
      added = added + 1
    end
  end
  rcall('HSET', P .. 'settings', 'tasks', number)
  for phase, counter in pairs(counters) do rcall('HSET', P .. 'phases', phase, counter) end
  if added + placed > 0 or replace == '1' then bump() end
  return {'done', added, known, placed}
end
`;
