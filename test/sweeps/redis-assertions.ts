// The outcomes of the tasks of a queue on Redis: read by redis-cli from its records, without gpu-owner's code.
import { queueName, type RedisServer } from '../support/redis-server.ts';
import type { TaskOutcomes } from './witnessed.ts';

const SCRIPT = `
local P, B = 'gpu-owner-tasks:' .. ARGV[1] .. ':', 'gpu-owner:' .. ARGV[1] .. ':'
local states = {'pending', 'active', 'completed', 'failed', 'cancelled'}
local found = {tasks = {}, counts = {}, living = 0, jobs = {}}
for _, state in ipairs(states) do found.counts[state] = 0 end
local function isIn(set, id) return redis.call('ZSCORE', B .. set, id) and true or false end
for number, id in ipairs(redis.call('ZRANGE', P .. 'order', 0, -1)) do
  local name, data, progress, holder, made, stalls =
    unpack(redis.call('HMGET', B .. id, 'name', 'data', 'progress', 'pb', 'atm', 'stc'))
  local status = progress and cjson.decode(progress) or {}
  local state = isIn('completed', id) and 'completed' or isIn('failed', id) and 'failed' or 'pending'
  if redis.call('LPOS', B .. 'active', id) then state = 'active' end
  if redis.call('SISMEMBER', P .. 'cancelled', id) == 1 then state = 'cancelled' end
  found.counts[state] = found.counts[state] + 1
  local attempts, known = {}, {}
  for _, each in ipairs(status.attempts or {}) do
    known[each.token] = true
    attempts[#attempts + 1] = {outcome = each.outcome, why = each.error ~= cjson.null and each.error or ''}
  end
  local who = holder and cjson.decode(holder)
  if who and not known[who.token] and (state == 'active' or (state == 'completed' and who.token:sub(1, 6) ~= 'table-')) then
    attempts[#attempts + 1] = {outcome = state == 'active' and 'none' or 'completed', why = ''}
    if state == 'active' then found.living = found.living + 1 end
  end
  local starts = tonumber(made or 0) + tonumber(stalls or 0) - (status.forgiven or 0) + (state == 'active' and 1 or 0)
  found.tasks[#found.tasks + 1] = {id = id, number = number, name = name, state = state, starts = starts,
    places = cjson.decode(cjson.decode(data).places), attempts = attempts}
end
for _, list in ipairs({'wait', 'active', 'paused'}) do found.jobs[list] = redis.call('LLEN', B .. list) end
for _, set in ipairs({'prioritized', 'delayed'}) do found.jobs[set] = redis.call('ZCARD', B .. set) end
return cjson.encode(found)`;

interface Found {
  tasks: {
    id: string;
    number: number;
    name: string;
    state: string;
    starts: number;
    places: string[][];
    attempts: RedisAttempt[] | Record<string, never>;
  }[];
  counts: Record<string, number>;
  living: number;
  jobs: Record<string, number>;
}

/** As the queue has written it down. */
interface RedisAttempt {
  outcome: string;
  why: string;
}

export interface RedisOutcomes extends TaskOutcomes {
  /** By state. */
  counts: Record<string, number>;
  /** By the names of tasks, in their order. */
  attempts: Map<string, RedisAttempt[]>;
}

export function redisOutcomes(server: RedisServer, project: string): RedisOutcomes {
  const text = server.command('EVAL', SCRIPT, '0', queueName(project));
  const found = JSON.parse(text) as Found;
  const attempts = new Map(
    found.tasks.map(({ name, attempts }) => [name, Array.isArray(attempts) ? attempts : []]),
  );
  return {
    tasks: found.tasks.map(({ places, attempts: _, number: __, ...task }) => ({
      ...task,
      tables: places.map(([, directory]) => directory as string),
    })),
    givenBack: [...attempts].flatMap(([name, all]) =>
      all.filter(({ outcome }) => outcome === 'given-back').map(({ why }) => ({ name, why })),
    ),
    // Once all have ended, nothing of BullMQ may still be under way.
    check: Object.values(found.jobs).every((count) => count === 0) ? 'ok' : JSON.stringify(found.jobs),
    counts: found.counts,
    living: found.living,
    attempts,
  };
}

/** Tasks whose starts aren't as many as there were attempts that count, or more than a task may have. */
export function miscounted({ tasks, attempts }: RedisOutcomes): string[] {
  return tasks.flatMap(({ name, starts }) => {
    const all = attempts.get(name) ?? [];
    const counted = all.filter(({ outcome }) => outcome !== 'given-back').length;
    const outcomes = all.map(({ outcome }) => outcome).join(', ');
    return counted === starts ? [] : [`${name} has ${starts} starts, and its attempts were ${outcomes}`];
  });
}
