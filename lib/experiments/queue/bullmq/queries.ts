import type { Task } from '../../task/index.ts';
import {
  type AttemptInfo,
  type Completed,
  type Completion,
  type Counts,
  LEAST_NEEDS,
  MAX_BYTES,
  type Needs,
  type Queries,
  STATES,
  type State,
  type TaskRow,
  type WithoutResult,
} from '../queue.ts';
import * as records from '../records.ts';
import type { RedisConnection, RedisReply } from './connection.ts';

/** Tasks per operation. */
const PAGE = 500;

export function queryMethods(connection: RedisConnection): Queries {
  return {
    async lookUp(ids) {
      return (await rowsOf(connection, ids)).map((row) => (row === null ? null : taskRowOf(row)));
    },

    async counts(offer) {
      const counts = await connection.call<number[]>('counts', ...offerWords(offer), ...STATES);
      return Object.fromEntries(STATES.map((state, index) => [state, counts[index] ?? 0])) as Counts;
    },

    async nextTime(offer) {
      return records.readTime(await connection.call<string | null>('nextTime', ...offerWords(offer)));
    },

    async needs() {
      const kinds = await connection.call<string[]>('needs');
      const needs = kinds.map((kind) => {
        const [gpus, memory] = kind.split(' ').map(records.readCount);
        return { gpus: gpus ?? 0, memory: memory ?? 0 };
      });
      return needs.sort((a, b) => b.gpus - a.gpus || b.memory - a.memory);
    },

    tasks: ({ state, match, limit = Number.POSITIVE_INFINITY } = {}) =>
      match === undefined ? listTasks(connection, state, limit) : matchTasks(connection, match, state, limit),

    async withoutResult() {
      const answer = await connection.call<string[]>('withoutResult');
      const found: WithoutResult[] = [];
      for (let at = 0; at < answer.length; at += 2) {
        const [host = '', ...worker] = (answer[at] as string).split('\n');
        found.push({ worker: worker.join('\n'), host, tasks: Number(answer[at + 1]) });
      }
      return found
        .filter(({ tasks }) => tasks > 0)
        .sort((one, other) => other.tasks - one.tasks || (one.worker < other.worker ? -1 : 1));
    },

    async attempts(which) {
      const words = which === 'living' ? [1, ''] : [0, which.taskId];
      return (await connection.call<(string | null)[][]>('attempts', ...words)).map(attemptInfoOf);
    },

    async completions(after, limit) {
      const answers = await connection.call<RedisReply[][]>('completions', after, limit, MAX_BYTES, 1);
      return answers.map(completionOf);
    },

    async completed(after, limit) {
      const answers = await connection.call<RowAnswer[]>('completions', after, limit, MAX_BYTES, 0);
      return answers.map(completedOf);
    },

    async retracted() {
      const tasks: Task[] = [];
      for (let after = 0; ; ) {
        const answers = await connection.call<RowAnswer[]>('retracted', after, PAGE, MAX_BYTES);
        const last = answers.at(-1);
        if (last === undefined) return tasks;
        tasks.push(...answers.map(taskOf));
        after = numberOf(last);
      }
    },
  };
}

/** An offer as arguments of operations. */
export function offerWords(offer: Needs | undefined): (string | number)[] {
  return offer === undefined ? ['', ''] : [offer.gpus, offer.memory];
}

async function* listTasks(
  connection: RedisConnection,
  state: State | undefined,
  limit: number,
): AsyncGenerator<TaskRow> {
  for (let after = 0, left = limit; left > 0; ) {
    const page = Math.min(PAGE, left);
    const answers = await connection.call<(RowAnswer | null)[]>('page', state ?? '', after, page, MAX_BYTES);
    if (!answers.some((answer) => answer !== null)) return;
    for (const answer of answers) {
      if (answer === null) continue;
      after = Math.max(after, numberOf(answer));
      yield taskRowOf(answer);
    }
    left -= answers.length;
  }
}

async function* matchTasks(
  connection: RedisConnection,
  match: string,
  state: State | undefined,
  limit: number,
): AsyncGenerator<TaskRow> {
  if (match === '') return;
  const ids = [...new Set(await connection.call<string[]>('match', match))];
  const answers = (await rowsOf(connection, ids)).filter((answer) => answer !== null);
  const rows = answers
    .sort((a, b) => numberOf(a) - numberOf(b))
    .map(taskRowOf)
    .filter((row) => state === undefined || row.state === state);
  yield* rows.slice(0, limit);
}

async function rowsOf(connection: RedisConnection, ids: readonly string[]): Promise<(RowAnswer | null)[]> {
  const rows: (RowAnswer | null)[] = [];
  while (rows.length < ids.length) {
    const some = ids.slice(rows.length, rows.length + PAGE);
    rows.push(...(await connection.call<(RowAnswer | null)[]>('rows', MAX_BYTES, ...some)));
  }
  return rows;
}

/** The Lua of these methods, and what opens a queue. */
export const QUERIES = `
-- number, sequence: by which it was found, whatever its record says
local function row(id, number, sequence)
  local fields = {id, get(id, 'name', 'parameters', 'command', 'places', 'state', 'starts', 'error', 'ended', 'source',
    'sequence', 'number')}
  if fields[6] == 'completed' then fields[10] = fields[10] or 'worker' end
  if not number and not sequence then return fields[2] and fields or false end
  for i = 2, 12 do fields[i] = fields[i] or false end
  if sequence then fields[11] = sequence end
  if number then fields[12] = string.format('%.0f', number) end
  return fields
end

-- As many of them as have no more than so many bytes together; one at least.
local function rows(ids, most, withResults, numbers, sequences)
  local list, size = {}, 0
  most = tonumber(most)
  for i, id in ipairs(ids) do
    local each = row(id, numbers and numbers[i], sequences and sequences[i])
    if each then for _, field in ipairs(each) do size = size + (field and #field or 0) end end
    if withResults then
      each = {each, (get(id, 'result'))}
      size = size + (each[2] and #each[2] or 0)
    end
    if i > 1 and size > most then break end
    list[i] = each
  end
  return list
end

function operations.open(create)
  -- Somebody has removed a part.
  if rcall('HEXISTS', P .. 'settings', 'format') == 0 and rcall('EXISTS', P .. 'states') == 1 then return '' end
  if create == '1' then rcall('HSETNX', P .. 'settings', 'format', 1) end
  return rcall('HGET', P .. 'settings', 'format')
end

function operations.project(record)
  if record ~= '' then rcall('HSETNX', P .. 'settings', 'project', record) end
  return rcall('HGET', P .. 'settings', 'project')
end

function operations.rows(most, ...)
  return rows({...}, most)
end

function operations.page(state, after, limit, most)
  local ids, numbers = listed(state, after, limit)
  return rows(ids, most, false, numbers)
end

function operations.match(word)
  local id = rcall('HGET', P .. 'names', word)
  local ids = {}
  if string.sub(word, 1, 2) == 't-' then
    for _, each in ipairs(rcall('ZRANGE', P .. 'states', 0, -1)) do
      if string.sub(each, 1, #word) == word then ids[#ids + 1] = each end
    end
  end
  if id then ids[#ids + 1] = id end
  return ids
end

function operations.counts(gpus, memory, ...)
  local counts = {}
  for i, state in ipairs({...}) do
    counts[i] = count(state)
    if state == 'pending' and gpus ~= '' then counts[i] = counts[i] - countLarger(tonumber(gpus), tonumber(memory)) end
  end
  return counts
end

function operations.nextTime(gpus, memory)
  gpus, memory = tonumber(gpus), tonumber(memory)
  local waiting = rcall('ZCOUNT', P .. 'due', '(' .. NOW, '+inf')
  if waiting == 0 then return false end
  if not gpus or suffices(gpus, memory) then
    if waiting < count('pending') then return false end
    return rcall('ZRANGEBYSCORE', P .. 'due', '(' .. NOW, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  local pending, first, from = count('pending') - countLarger(gpus, memory), false, 0
  repeat
    local ids = rcall('ZRANGEBYSCORE', P .. 'due', '(' .. NOW, '+inf', 'LIMIT', from, 1000)
    local some = fitting(ids, gpus, memory)
    first = first or (some[1] and rcall('ZSCORE', P .. 'due', some[1]))
    pending, from = pending - #some, from + #ids
  until #ids == 0
  return pending <= 0 and first or false
end

function operations.needs()
  local kinds, seen = {}, {}
  for _, state in ipairs({'pending', 'active'}) do
    local from = 0
    local after, last = behind(state, 0)
    repeat
      local ids = rcall('ZRANGEBYSCORE', P .. 'states', after, last, 'LIMIT', from, 1000)
      for _, kind in ipairs(#ids > 0 and rcall('HMGET', P .. 'needs', unpack(ids)) or {}) do
        kind = kind or '${LEAST_NEEDS.gpus} ${LEAST_NEEDS.memory}'
        if not seen[kind] then
          seen[kind] = true
          kinds[#kinds + 1] = kind
        end
      end
      from = from + #ids
    until #ids == 0
  end
  return kinds
end

-- Ids behind a score, and their scores.
local function scored(key, after, limit)
  local found, ids, scores = rcall('ZRANGEBYSCORE', P .. key, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit), {}, {}
  for i = 1, #found, 2 do ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1] end
  return ids, scores
end

function operations.completions(after, limit, most, withResults)
  local ids, sequences = scored('completions', after, limit)
  return rows(ids, most, withResults == '1', nil, sequences)
end

function operations.retracted(after, limit, most)
  local ids, numbers = scored('retracted', after, limit)
  return rows(ids, most, false, numbers)
end

local function describe(token, id)
  local fields = redis.pcall('HMGET', P .. 'attempt:' .. token, 'begun', 'ended', 'outcome', 'error', 'log', 'log_from', 'log_to',
    'deadline', 'once', 'seen')
  if fields.err then fields = {} end
  local begun, ended, outcome, why, log, from, to, deadline, once, seen = unpack(fields)
  local since, _, worker = begunOf(begun)
  if not outcome then
    local by, when = completedBy(id)
    if by == token then outcome, ended = 'completed', when end
  end
  local silent = once and not outcome and NOW - (tonumber(seen) or 0) > tonumber(LOCK) and seen or false
  local submitted = redis.pcall('HEXISTS', P .. 'attempt:' .. token, 'result') == 1 and '1' or '0'
  return {id, worker or false, since or false, ended or false, outcome or false, why or false, log or false, from or false, to or false,
    token, (get(id, 'name')) or id, submitted, silent}, tonumber(deadline)
end

function operations.attempts(living, id)
  local list = {}
  if living ~= '1' then
    local tokens = tokensOf(id)
    for i = #tokens, 1, -1 do list[#list + 1] = (describe(tokens[i], id)) end
    return list
  end
  local arrived = {}
  for i, active in ipairs(listed('active', 0, -1)) do
    arrived[active] = i
    local token = (get(active, 'attempt'))
    if token then
      local fields, deadline = describe(token, active)
      -- Those of whom there is no sign of life don't live, although nobody has noted it yet.
      local lives
      if deadline then lives = deadline > tonumber(NOW) else lives = lockOf(active) == token end
      if lives then list[#list + 1] = fields end
    end
  end
  table.sort(list, function(a, b)
    local one, other = tonumber(a[3] or 0), tonumber(b[3] or 0)
    if one ~= other then return one < other end
    return arrived[a[1]] < arrived[b[1]]
  end)
  return list
end

function operations.withoutResult()
  return rcall('HGETALL', P .. 'without')
end

-- The pause, and since when it is one of a dashboard, which doesn't say that itself: since somebody saw it first.
function operations.paused()
  local pause, since = unpack(rcall('HMGET', P .. 'settings', 'pause', 'pausedOutside'))
  if pause then return {pause, false} end
  if rcall('HEXISTS', B .. 'meta', 'paused') == 0 then
    if since then rcall('HDEL', P .. 'settings', 'pausedOutside') end
    return {false, false}
  end
  if not since then rcall('HSET', P .. 'settings', 'pausedOutside', NOW) end
  return {false, since or NOW}
end

function operations.manager()
  local who = rcall('GET', P .. 'manager')
  return who and {who, string.format('%.0f', NOW + rcall('PTTL', P .. 'manager'))}
end
`;

// What scripts answer: Redis knows texts and lists of texts only.

type Maybe = string | null;

/** A task, as `row` answers it. */
export type RowAnswer = [
  id: string,
  name: string,
  parameters: string,
  command: string,
  places: string,
  ...rest: Maybe[],
];

export function taskOf(answer: readonly RedisReply[]): Task {
  return records.taskOf(storedTask(answer));
}

export function taskRowOf(answer: RowAnswer): TaskRow {
  return records.taskRowOf(storedTask(answer));
}

/** The number of a task in the order of arrival. */
function numberOf(answer: RowAnswer): number {
  return records.readCount(answer[11]);
}

function completedOf(answer: RowAnswer): Completed {
  return records.completedOf(storedTask(answer));
}

export function completionOf([answer, result]: RedisReply[]): Completion {
  return records.completionOf({ ...storedTask(answer as RowAnswer), result });
}

function storedTask(answer: readonly RedisReply[]): records.StoredTask {
  const [id, name, parameters, command, lines, state, starts, error, ended, source, sequence] = answer;
  const places = typeof lines === 'string' ? `[${lines.replaceAll('\n', ',')}]` : lines;
  return { id, name, parameters, command, places, state, starts, error, ended, source, sequence };
}

export function attemptInfoOf(answer: Maybe[]): AttemptInfo {
  const [id, workerText, since, ended, outcome, error, log, from, to, token, name, submitted, silentSince] =
    answer;
  const list = records.readJSON(workerText);
  const [worker, host, pid, gpus] = Array.isArray(list) ? list : [];
  return records.attemptInfoOf({
    ...{ token, id, name, worker, host, pid, gpus, since, ended, outcome, error },
    ...{ log, log_from: from, log_to: to, submitted: submitted === '1', silentSince },
  });
}
