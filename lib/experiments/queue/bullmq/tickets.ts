import { EventEmitter } from 'node:events';
import { createRequire } from 'node:module';
import type * as BullMQ from 'bullmq';

/** What stands in captured arguments for the prefix of BullMQ's keys: scripts are the same for all queues. */
const PREFIX = '@P';
const NAME = '@N';
/** Placeholders that are the same for a whole script. */
const CONSTANTS = ['NOW', 'LOCK', 'INTERVAL'];

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
 * BullMQ's own scripts as functions of Lua, with the arguments that BullMQ itself calls them with: so our records and its job change in
 * one step, which nothing can interrupt. Only what BullMQ offers to those who bring a client of their own is used.
 *
 * Defines `bull(NAME, values)`; values are by placeholder: `id` for `@ID@`, … `NOW`, `LOCK` and `INTERVAL` are those of the script.
 * @param names those that the script needs: what isn't there costs nothing
 */
export async function bullmqLibrary(names: readonly TicketAction[]): Promise<string> {
  captured ??= capture();
  const actions = (await captured).filter(({ name }) => names.includes(name));
  const bodies = new Map(actions.map(({ script, lua }) => [script, lua]));
  // Functions are made when they are needed: making all of them costs as much as some operations.
  return [
    'local function bodyOf(script)',
    ...[...bodies].map(
      ([script, lua]) => `if script == '${script}' then return function(KEYS, ARGV)\n${lua}\nend end`,
    ),
    'end',
    'local calls = {}',
    'local function bull(name, values)',
    'local call = calls[name]',
    'if not call then',
    ...actions.map(({ name, script, keys, args }) => {
      const list = (words: readonly string[]) => `{${words.map((word) => expressionOf(word)).join(',')}}`;
      return `if name == '${name}' then call = {bodyOf('${script}'), ${list(keys)}, ${list(args)}} end`;
    }),
    'calls[name] = call',
    'else',
    'local keys, args = call[2], call[3]',
    ...actions.map(({ name, keys, args }) => {
      const lines = [...changes('keys', keys), ...changes('args', args)];
      return lines.length === 0 ? '' : `if name == '${name}' then ${lines.join(' ')} end`;
    }),
    'end',
    'return call[1](call[2], call[3])',
    'end',
  ].join('\n');
}

export type TicketAction = (typeof ACTIONS)[number];
const ACTIONS = [
  'moveToActive',
  'completed',
  'failed',
  'retry',
  'delay',
  'remove',
  'extendLock',
  'moveStalled',
  'pause',
  'resume',
  'add',
] as const;

interface Captured {
  name: TicketAction;
  script: string;
  lua: string;
  keys: string[];
  args: string[];
}

let captured: Promise<Captured[]> | undefined;

async function capture(): Promise<Captured[]> {
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
  type Replace = (args: unknown[]) => unknown[];
  const calls: Record<TicketAction, [call: () => unknown, replace?: Replace]> = {
    moveToActive: [() => backend.moveToActive('', undefined), (args) => [...args.slice(0, -1), '@OPTS@']],
    // The result is JSON already.
    completed: [
      () => backend.moveToCompleted(job, '@VALUE@', keep, '0', false),
      (args) => args.map((arg) => (arg === '"@VALUE@"' ? '@VALUE@' : arg)),
    ],
    failed: [() => backend.moveToFailed(job, '@VALUE@', keep, '0', false)],
    retry: [() => backend.retryJob('@ID@', false, '0')],
    delay: [
      () => backend.moveToDelayed('@ID@', '@NOW@' as never, '@DELAY@' as never, '0', { skipAttempt: true }),
    ],
    remove: [() => backend.remove('@ID@', false)],
    extendLock: [() => backend.extendLock('@ID@', '@TOKEN@', '@LOCK@' as never)],
    moveStalled: [() => backend.moveStalledJobsToWait()],
    pause: [() => backend.pause(true)],
    resume: [() => backend.pause(false)],
    add: [() => backend.addJob(job, '@ID@'), (args) => [...args.slice(0, -3), '@JOB@', '@DATA@', '@OPTS@']],
  };
  const found: Captured[] = [];
  for (const name of ACTIONS) {
    const [call, replace = (args: unknown[]) => args] = calls[name];
    const before = Date.now();
    await call();
    const after = Date.now();
    const { name: script, args } = recorder.call as Call;
    const { lua, numberOfKeys } = recorder.scripts.get(script) as { lua: string; numberOfKeys: number };
    const words = replace(args).map((arg) =>
      typeof arg === 'number' && arg >= before && arg <= after ? '@NOW@' : textOf(arg),
    );
    found.push({ name, script, lua, keys: words.slice(0, numberOfKeys), args: words.slice(numberOfKeys) });
  }
  await backend.close();
  return found;
}

/** In bytes, as `latin1` has them. */
function textOf(item: unknown): string {
  const bytes = Buffer.isBuffer(item) ? item : Buffer.from(item == null ? '' : String(item));
  return bytes.toString('latin1');
}

/** Lua for a word. */
function expressionOf(word: string): string {
  const start = `${PREFIX}:${NAME}:`;
  if (word.startsWith(`${start}@ID@`)) return `B..values.id..${luaString(word.slice(start.length + 4))}`;
  if (word.startsWith(start)) return `B..${luaString(word.slice(start.length))}`;
  const placeholder = /^@([A-Z]+)@$/.exec(word)?.[1];
  if (placeholder === undefined) return luaString(word);
  return CONSTANTS.includes(placeholder) ? placeholder : `values.${placeholder.toLowerCase()}`;
}

/** Of those words that aren't the same in every call. */
function changes(list: string, words: readonly string[]): string[] {
  return words.flatMap((word, index) => {
    const expression = expressionOf(word);
    return expression.includes('values.') && !expression.startsWith('"')
      ? [`${list}[${index + 1}]=${expression}`]
      : [];
  });
}

function luaString(text: string): string {
  const escaped = [...Buffer.from(text, 'latin1')].map((byte) =>
    byte >= 32 && byte < 127 && byte !== 34 && byte !== 92
      ? String.fromCharCode(byte)
      : `\\${String(byte).padStart(3, '0')}`,
  );
  return `"${escaped.join('')}"`;
}
