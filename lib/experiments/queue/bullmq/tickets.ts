import { EventEmitter } from 'node:events';
import { createRequire } from 'node:module';
import type * as BullMQ from 'bullmq';

/** What stands in captured arguments for the prefix of BullMQ's keys: scripts are the same for all queues. */
const PREFIX = '@P';
const NAME = '@N';

interface Call {
  name: string;
  args: unknown[];
}

/** Stands in for a connection: keeps BullMQ's scripts, and what they are called with. */
class Recorder extends EventEmitter {
  readonly status = 'ready';
  readonly options = {};
  readonly isCluster = false;
  readonly scripts = new Map<string, { lua: string; numberOfKeys: number }>();
  call: Call | null = null;

  defineCommand(name: string, script: { lua: string; numberOfKeys: number }): void {
    this.scripts.set(name.replace(/:.*$/, ''), script);
  }

  async runCommand(name: string, args: unknown[]): Promise<unknown> {
    this.call = { name: name.replace(/:.*$/, ''), args };
    return name.startsWith('moveToActive') ? [0, 0, 0, 0] : 0;
  }

  duplicate(): this {
    return this;
  }
  scanStream(): this {
    return this;
  }
  pipeline(): this {
    return this;
  }
  multi(): this {
    return this;
  }
  async connect(): Promise<void> {}
  async disconnect(): Promise<void> {}
  async quit(): Promise<void> {}
  async info(): Promise<string> {
    return '';
  }
  async clientSetName(): Promise<void> {}
  async clientList(): Promise<string> {
    return '';
  }
}

/**
 * BullMQ's own scripts as functions of Lua, and the arguments that BullMQ itself calls them with, as templates: so our records
 * and its job change in one step, which nothing can interrupt. Only what BullMQ offers to those who bring a client of their own
 * is used.
 *
 * Defines `bull.NAME(values)` for each; values are by placeholder: `@ID@`, `@NOW@`, `@VALUE@`, `@DELAY@`, `@OPTS@`, …
 */
export async function bullmqLibrary(): Promise<string> {
  const { createRedisBackend } = createRequire(import.meta.filename)('bullmq') as typeof BullMQ;
  const recorder = new Recorder();
  const backend = createRedisBackend(NAME, {
    connection: recorder as unknown as BullMQ.ConnectionOptions,
    prefix: PREFIX,
    skipVersionCheck: true,
    // Whether a task has failed for good is decided by our records.
    maxStalledCount: 1_000_000_000,
    stalledInterval: '@INTERVAL@',
  } as never) as BullMQ.RedisQueueBackend;
  await backend.waitUntilReady();
  const job = {
    id: '@ID@',
    data: '@DATA@',
    opts: { attempts: 1_000_000, priority: 1 },
  } as unknown as BullMQ.MinimalJob & BullMQ.JobJson;
  const keep = { count: -1 };
  const captured: [name: string, capture: () => unknown, replace?: (args: unknown[]) => unknown[]][] = [
    ['moveToActive', () => backend.moveToActive('', undefined), (args) => [...args.slice(0, -1), '@OPTS@']],
    // The result is JSON already.
    [
      'completed',
      () => backend.moveToCompleted(job, '@VALUE@', keep, '0', false),
      (args) => args.map((arg) => (arg === '"@VALUE@"' ? '@VALUE@' : arg)),
    ],
    ['failed', () => backend.moveToFailed(job, '@VALUE@', keep, '0', false)],
    ['retry', () => backend.retryJob('@ID@', false, '0')],
    [
      'delay',
      () => backend.moveToDelayed('@ID@', '@NOW@' as never, '@DELAY@' as never, '0', { skipAttempt: true }),
    ],
    ['remove', () => backend.remove('@ID@', false)],
    ['extendLock', () => backend.extendLock('@ID@', '@TOKEN@', '@LOCK@' as never)],
    ['moveStalled', () => backend.moveStalledJobsToWait()],
    ['pause', () => backend.pause(true)],
    ['resume', () => backend.pause(false)],
    ['add', () => backend.addJob(job, '@ID@'), (args) => [...args.slice(0, -3), '@JOB@', '@DATA@', '@OPTS@']],
  ];
  const bodies = new Map<string, string>();
  const templates: string[] = [];
  for (const [name, capture, replace = (args: unknown[]) => args] of captured) {
    const before = Date.now();
    await capture();
    const after = Date.now();
    const { name: script, args } = recorder.call as Call;
    const { lua, numberOfKeys } = recorder.scripts.get(script) as { lua: string; numberOfKeys: number };
    bodies.set(script, lua);
    const words = replace(args).map((arg) =>
      typeof arg === 'number' && arg >= before && arg <= after ? '@NOW@' : arg,
    );
    const list = (items: unknown[]) => `{${items.map((item) => luaString(item)).join(',')}}`;
    templates.push(
      // Made when they are needed, and once.
      `do local keys, args\nbull.${name} = function(values)`,
      `if not keys then keys, args = ${list(words.slice(0, numberOfKeys))}, ${list(words.slice(numberOfKeys))} end`,
      `return bodies.${script}(fill(keys, values), fill(args, values)) end end`,
    );
  }
  await backend.close();
  const functions = [...bodies].map(([name, lua]) => `bodies.${name} = function(KEYS, ARGV)\n${lua}\nend`);
  return [FILL, ...functions, ...templates].join('\n');
}

/** Words that stand for nothing are the same in all calls: they are put together once. */
const FILL = `
local bodies, bull, filled = {}, {}, {}
local function fill(list, values)
  local known = filled[list]
  if not known then
    known = {words = {}, open = {}}
    filled[list] = known
    for i = 1, #list do
      local word = list[i]
      if string.sub(word, 1, 6) == '${PREFIX}:${NAME}:' then
        word = string.sub(word, 7)
        if string.sub(word, 1, 4) == '@ID@' then known.open[#known.open + 1] = {i, '@ID@', B, string.sub(word, 5)} else word = B .. word end
      elseif string.find(word, '^@%u+@$') then
        known.open[#known.open + 1] = {i, word, '', ''}
      end
      known.words[i] = word
    end
  end
  local words = known.words
  for i = 1, #known.open do
    local each = known.open[i]
    local value = values[each[2]]
    words[each[1]] = each[3] == '' and value or each[3] .. value .. each[4]
  end
  return words
end`;

function luaString(item: unknown): string {
  const bytes = Buffer.isBuffer(item)
    ? item
    : Buffer.from(item === undefined || item === null ? '' : String(item));
  const escaped = [...bytes].map((byte) =>
    byte >= 32 && byte < 127 && byte !== 34 && byte !== 92
      ? String.fromCharCode(byte)
      : `\\${String(byte).padStart(3, '0')}`,
  );
  return `"${escaped.join('')}"`;
}
