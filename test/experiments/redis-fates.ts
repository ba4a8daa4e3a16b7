// What has become of the tasks of a queue on Redis: read by redis-cli from its records, without gpu-owner's code.
import type { RedisServer } from './queue/redis-server.ts';
import type { Fates } from './witnessed.ts';

const SCRIPT = `
local P, B = 'gpu-owner-tasks:' .. ARGV[1] .. ':', 'gpu-owner:' .. ARGV[1] .. ':'
local found = {tasks = {}, counts = {}, jobs = {}}
for _, id in ipairs(redis.call('ZRANGE', P .. 'arrival', 0, -1)) do
  local task = redis.call('HMGET', P .. 'task:' .. id, 'name', 'state', 'starts', 'places')
  local attempts = {}
  for _, token in ipairs(redis.call('LRANGE', P .. 'attempts:' .. id, 0, -1)) do
    local attempt = redis.call('HMGET', P .. 'attempt:' .. token, 'outcome', 'error', 'start', 'excused')
    attempts[#attempts + 1] = {outcome = attempt[4] and 'excused' or attempt[1] or 'none', why = attempt[2] or '', start = tonumber(attempt[3])}
  end
  found.tasks[#found.tasks + 1] = {id = id, name = task[1], state = task[2], starts = tonumber(task[3]), places = task[4], attempts = attempts}
end
for _, state in ipairs({'pending', 'active', 'completed', 'failed', 'cancelled'}) do
  found.counts[state] = redis.call('ZCARD', P .. 'state:' .. state)
end
found.living = redis.call('ZCARD', P .. 'living')
for _, list in ipairs({'wait', 'active', 'paused'}) do found.jobs[list] = redis.call('LLEN', B .. list) end
for _, set in ipairs({'prioritized', 'delayed'}) do found.jobs[set] = redis.call('ZCARD', B .. set) end
return cjson.encode(found)`;

interface Found {
  tasks: {
    id: string;
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
  start: number;
}

const NOT_COUNTED = ['given-back', 'excused'];

export interface RedisFates extends Fates {
  /** By the names of tasks, in their order. */
  attempts: Map<string, RedisAttempt[]>;
}

/** @param project the name of the queue */
export function redisFates(server: RedisServer, project: string): RedisFates {
  const text = server.command('EVAL', SCRIPT, '0', project);
  const found = JSON.parse(text) as Found;
  const attempts = new Map(
    found.tasks.map(({ name, attempts }) => [name, Array.isArray(attempts) ? attempts : []]),
  );
  return {
    tasks: found.tasks.map(({ places, attempts: _, ...task }) => ({
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
export function miscounted({ tasks, attempts }: RedisFates): string[] {
  return tasks.flatMap(({ name, starts }) => {
    const all = attempts.get(name) ?? [];
    const counted = all.filter(({ outcome }) => !NOT_COUNTED.includes(outcome)).length;
    const outcomes = all.map(({ outcome, start }) => `${start}: ${outcome}`).join(', ');
    return counted === starts ? [] : [`${name} has ${starts} starts, and its attempts were ${outcomes}`];
  });
}
