import { EventEmitter } from 'node:events';
import { createRequire } from 'node:module';
import type * as BullMQ from 'bullmq';
import { GPUOwnerError } from '../../../errors.ts';
import { sanitize } from '../../../platform/index.ts';

/** The version whose scripts these are. package.json asks for exactly this one. */
export const BULLMQ_VERSION = '6.7.0';

/** Stands for the prefix of BullMQ's keys in captured arguments: scripts are the same for all queues. */
const PREFIX = '@P';
const NAME = '@N';
/** Placeholders that are the same for a whole script. */
const CONSTANTS = ['NOW', 'LOCK', 'INTERVAL'];

interface Call {
  name: string;
  args: unknown[];
}

/** A connection that only records BullMQ's scripts, and the arguments that it calls them with. */
class RecordingConnection extends EventEmitter {
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
 * Makes Lua functions of BullMQ's own scripts, with the arguments that BullMQ itself calls them with: so our records and BullMQ's job change
 * in one step. Uses only what BullMQ offers to users who bring a client of their own.
 *
 * The Lua defines `bull(NAME, values)`. Values are by placeholder: `id` for `@ID@`, … `NOW`, `LOCK` and `INTERVAL` are those of the script.
 * @param names the actions that the script needs
 * @param base the prefix of the queue's keys, for a script that runs with every task and hardly ever calls an action twice. null: the
 * prefix is in `B`, and calls are prepared for being repeated
 * @throws ERR_QUEUE if another version of BullMQ is installed
 */
export async function bullmqLibrary(names: readonly JobAction[], base: string | null): Promise<string> {
  captured ??= capture();
  const actions = (await captured).filter(({ name }) => names.includes(name));
  const bodies = new Map(actions.map(({ script, lua }) => [script, lua]));
  const list = (words: readonly Word[]) => `{${words.map((word) => expressionOf(word, base)).join(',')}}`;
  // Functions are made when they are needed: making all of them costs as much as some operations.
  return [
    'local function bodyOf(script)',
    ...[...bodies].map(
      ([script, lua]) =>
        `if script == '${script}' then return function(KEYS, ARGV, cmsgpack)\n${lua}\nend end`,
    ),
    'end',
    // What BullMQ packs for the way to Redis is there already: `assert` answers what it is given.
    ...(base !== null
      ? [
          'local function bull(name, values)',
          ...actions.map(
            ({ name, script, keys, args }) =>
              `if name == '${name}' then return bodyOf('${script}')(${list(keys)}, ${list(args)}, {unpack = assert}) end`,
          ),
          'end',
        ]
      : [
          'local unpacked = {unpack = assert}',
          'local calls = {}',
          'local function bull(name, values)',
          'local call = calls[name]',
          'if not call then',
          ...actions.map(
            ({ name, script, keys, args }) =>
              `if name == '${name}' then call = {bodyOf('${script}'), ${list(keys)}, ${list(args)}} end`,
          ),
          'calls[name] = call',
          'else',
          'local keys, args = call[2], call[3]',
          ...actions.map(({ name, keys, args }) => {
            const lines = [...changes('keys', keys, base), ...changes('args', args, base)];
            return lines.length === 0 ? '' : `if name == '${name}' then ${lines.join(' ')} end`;
          }),
          'end',
          'return call[1](call[2], call[3], unpacked)',
          'end',
        ]),
  ].join('\n');
}

export type JobAction = (typeof ACTIONS)[number];
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
  name: JobAction;
  script: string;
  lua: string;
  keys: Word[];
  args: Word[];
}

/** A text, or an expression in Lua. */
type Word = string | { lua: string };

let captured: Promise<Captured[]> | undefined;

/** @throws ERR_QUEUE */
function checkVersion(version: string): void {
  if (version === BULLMQ_VERSION) return;
  throw new GPUOwnerError(
    'ERR_QUEUE',
    `BullMQ ${sanitize(version, 40)} is installed, but queues on Redis need exactly ${BULLMQ_VERSION}, whose scripts they run. ` +
      `Install that version beside gpu-owner: npm install bullmq@${BULLMQ_VERSION}`,
  );
}

async function capture(): Promise<Captured[]> {
  const require = createRequire(import.meta.filename);
  checkVersion((require('bullmq/package.json') as { version: string }).version);
  const { createRedisBackend } = require('bullmq') as typeof BullMQ;
  // BullMQ packs arguments with this package.
  const { unpack } = createRequire(require.resolve('bullmq'))('msgpackr') as {
    unpack(bytes: Buffer): unknown;
  };
  const recorder = new RecordingConnection();
  const backend = createRedisBackend(NAME, {
    connection: recorder as unknown as BullMQ.ConnectionOptions,
    prefix: PREFIX,
    skipVersionCheck: true,
    // Our records decide whether a task has failed for good.
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
  const calls: Record<JobAction, [call: () => unknown, replace?: Replace]> = {
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
      Buffer.isBuffer(arg)
        ? { lua: luaValue(unpack(arg)) }
        : typeof arg === 'number' && arg >= before && arg <= after
          ? '@NOW@'
          : String(arg ?? ''),
    );
    found.push({ name, script, lua, keys: words.slice(0, numberOfKeys), args: words.slice(numberOfKeys) });
  }
  await backend.close();
  return found;
}

/** The Lua expression for a word. */
function expressionOf(word: Word, base: string | null): string {
  if (typeof word !== 'string') return word.lua;
  const start = `${PREFIX}:${NAME}:`;
  const isKey = word.startsWith(start);
  const text = isKey ? (base ?? '') + word.slice(start.length) : word;
  const parts = text
    .split(/(@[A-Z]+@)/)
    .filter((part) => part !== '')
    .map((part) => {
      const placeholder = /^@([A-Z]+)@$/.exec(part)?.[1];
      if (placeholder === undefined) return luaString(part);
      return CONSTANTS.includes(placeholder) ? placeholder : `values.${placeholder.toLowerCase()}`;
    });
  if (isKey && base === null) parts.unshift('B');
  return parts.join('..') || luaString('');
}

/** Lua that sets the words that differ between calls. */
function changes(list: string, words: readonly Word[], base: string | null): string[] {
  return words.flatMap((word, index) =>
    typeof word === 'string' && /@[A-Z]+@/.test(word) && !CONSTANTS.some((name) => word === `@${name}@`)
      ? [`${list}[${index + 1}]=${expressionOf(word, base)}`]
      : [],
  );
}

function luaValue(value: unknown): string {
  if (value === null || value === undefined) return 'nil';
  if (typeof value === 'string') return luaString(value);
  if (typeof value !== 'object') return String(value);
  const entries = Object.entries(value).filter(([, each]) => each != null);
  return `{${entries.map(([name, each]) => `[${luaString(name)}]=${luaValue(each)}`).join(',')}}`;
}

function luaString(text: string): string {
  const escaped = [...Buffer.from(text)].map((byte) =>
    byte >= 32 && byte < 127 && byte !== 34 && byte !== 92
      ? String.fromCharCode(byte)
      : `\\${String(byte).padStart(3, '0')}`,
  );
  return `"${escaped.join('')}"`;
}
