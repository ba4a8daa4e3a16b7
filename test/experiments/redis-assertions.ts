// The outcomes of the tasks of a queue on Redis: read by redis-cli from its records, without gpu-owner's code.
import { queueName, type RedisServer } from '../support/redis-server.ts';
import type { TaskOutcomes } from './witnessed.ts';

const SCRIPT = `
local P, B = 'gpu-owner-tasks:' .. ARGV[1] .. ':', 'gpu-owner:' .. ARGV[1] .. ':'
local states = {'pending', 'active', 'completed', 'failed', 'cancelled'}
local found = {tasks = {}, counts = {}, living = 0, jobs = {}}
for _, state in ipairs(states) do found.counts[state] = 0 end
local scored = redis.call('ZRANGE', P .. 'states', 0, -1, 'WITHSCORES')
for i = 1, #scored, 2 do
  local id, score = scored[i], tonumber(scored[i + 1])
  local task = redis.call('HMGET', P .. 'task:' .. id, 'name', 'state', 'starts', 'places', 'attempt', 'source', 'by')
  local indexed = states[math.floor(score / 2 ^ 40) + 1]
  found.counts[indexed] = found.counts[indexed] + 1
  local attempts, token = {}, task[5]
  while token do
    local attempt = redis.call('HMGET', P .. 'attempt:' .. token, 'outcome', 'error', 'before', 'excused')
    -- Of the one that has completed it, the task says so.
    if not attempt[1] and task[2] == 'completed' and not task[6] and (task[7] or task[5]) == token then attempt[1] = 'completed' end
    if not attempt[1] then found.living = found.living + 1 end
    table.insert(attempts, 1, {outcome = attempt[4] and 'excused' or attempt[1] or 'none', why = attempt[2] or ''})
    token = attempt[3]
  end
  found.tasks[#found.tasks + 1] = {id = id, number = score % 2 ^ 40, name = task[1], state = task[2], starts = tonumber(task[3]),
    places = task[4], attempts = attempts}
  if indexed ~= task[2] then found.tasks[#found.tasks].state = task[2] .. ', listed as ' .. indexed end
end
table.sort(found.tasks, function(a, b) return a.number < b.number end)
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
    places: string;
    attempts: RedisAttempt[] | Record<string, never>;
  }[];
  counts: Record<string, number>;
  living: number;
  jobs: Record<string, number>;
}

/** As the queue has written it down. */
export interface RedisAttempt {
  /** As the queue has it; 'excused': lost, and not counted, since its worker was heard of again. */
  outcome: string;
  why: string;
}

const NOT_COUNTED = ['given-back', 'excused'];

export interface RedisOutcomes extends TaskOutcomes {
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
      tables: places.split('\n').map((place) => (JSON.parse(place) as string[])[1] as string),
    })),
    givenBack: [...attempts].flatMap(([name, all]) =>
      all.filter(({ outcome }) => NOT_COUNTED.includes(outcome)).map(({ why }) => ({ name, why })),
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
    const counted = all.filter(({ outcome }) => !NOT_COUNTED.includes(outcome)).length;
    const outcomes = all.map(({ outcome }) => outcome).join(', ');
    return counted === starts ? [] : [`${name} has ${starts} starts, and its attempts were ${outcomes}`];
  });
}
