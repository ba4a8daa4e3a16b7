import { setMaxListeners } from 'node:events';
import type { Host } from '../../config/index.ts';
import { GPUOwnerError, isFailure } from '../../errors.ts';
import {
  type Channel,
  environmentFor,
  type HostFailure,
  hostsToUse,
  openChannel,
} from '../../fleet/index.ts';
import { formatDuration, sanitize, schema, sleep, TIMEOUTS, usageError } from '../../platform/index.ts';
import { type Begin, WorkerSession } from '../protocol/index.ts';
import { type ExperimentLocation, isOnServer, type Queue } from '../queue/index.ts';
import type { WorkerEnd } from '../worker/index.ts';
import type { Pool } from './worker-pool.ts';

export interface HostRequest {
  hosts: readonly { host: Host; directory: string }[];
  /** The arguments of gpu-owner there, for a host. */
  words: (host: string) => readonly string[];
  environment: Begin['environment'];
}

/**
 * The workers on other machines.
 * @param list hosts, each with the project's directory there if that is another one @param words the options of workers there
 * @throws ERR_INVALID_ARGUMENT
 */
export function hostRequest(
  list: string,
  { gpus, env = [] }: { gpus?: string | undefined; env?: readonly string[] | undefined },
  words: readonly string[],
  { directory, url }: ExperimentLocation,
): HostRequest {
  if (url !== null && isOnServer(url))
    throw usageError('--on: the task list is on a server; start gpu-owner exp worker on the hosts instead');
  if (gpus === undefined) throw usageError('--on: how many GPUs of each host? Use --gpus all, or --gpus N');
  const { hosts } = hostsToUse(list, list.trim() === 'all' ? 'all' : 'any');
  return {
    hosts: hosts.map(({ host, directory: there }) => ({ host, directory: there ?? directory })),
    words: (host) => ['exp', 'worker', `--over-ssh=${host}`, ...words],
    environment: Object.fromEntries(environmentFor(env)),
  };
}

interface HostWorkersOptions extends HostRequest {
  queue: Queue;
  /** Called when a task has failed. */
  onFailure: (name: string, error: string) => void;
  /** Tells people. */
  tell: (text: string) => void;
}

/** Between two connections to a host, in ms: each time twice as long. */
const MIN_RETRY_MS = 1_000;
const MAX_RETRY_MS = 60_000;
/** How long hosts may take to stop their tasks before the connection is closed, in ms. */
const STOP_TIMEOUT_MS = 15_000;
/** Failures that may pass. The others don't without a person. */
const PASSING = ['ERR_HOST_UNREACHABLE', 'ERR_HOST_TIMEOUT'];

/** The failure of a host whose workers have ended without a word: for them, the connection was over. */
const UNHEARD = {
  code: 'ERR_HOST_UNREACHABLE',
  message: 'its workers ended, as they had heard nothing of this manager for too long',
};

/** The state of a host: asked for the first time, has workers, not reached and asked again, asked no more. */
type HostState = 'first' | 'working' | 'away' | 'ended';

interface WorkingHost {
  name: string;
  host: Host;
  directory: string;
  state: HostState;
  hasWorked: boolean;
  connection: { channel: Channel; session: WorkerSession | null } | null;
}

const { listOf, nullable, optional, record, shownText, among } = schema;
const ENDS = listOf(
  record({
    why: among(['finished', 'drained', 'stopped', 'failures', 'environment', 'error']),
    message: nullable(shownText(2_000)),
  }),
  1_000,
);
const WORDS = record({
  say: optional(shownText(2_000)),
  ended: optional(ENDS),
});

/**
 * Workers on other machines, one ssh each, which ask this process for tasks. A connection that breaks is opened again. A host that can't be
 * used is named, and the others work.
 */
export class HostWorkers implements Pool {
  readonly #options: HostWorkersOptions;
  readonly #hosts: WorkingHost[];
  readonly #begin: Begin;
  /** Aborted when no host is to be asked again. */
  readonly #over = new AbortController();
  #drains = false;

  constructor(options: HostWorkersOptions) {
    this.#options = options;
    const { environment } = options;
    setMaxListeners(0, this.#over.signal); // each host that isn't reached listens
    this.#begin = { silence: TIMEOUTS.silence, grace: TIMEOUTS.silenceGrace, environment };
    this.#hosts = options.hosts.map(({ host, directory }) => ({
      ...{ name: host.name, host, directory, state: 'first', hasWorked: false, connection: null },
    }));
  }

  async run(): Promise<readonly WorkerEnd[]> {
    const ends = await Promise.all(this.#hosts.map((each) => this.#work(each)));
    return ends.flat();
  }

  drain(): void {
    this.#drains = true;
    this.#over.abort();
    for (const { connection } of this.#hosts) {
      if (connection?.session) connection.session.drain();
      else connection?.channel.close();
    }
  }

  stop(): void {
    this.drain();
    for (const { connection } of this.#hosts) connection?.session?.stop();
    const close = () => {
      for (const { connection } of this.#hosts) connection?.channel.close();
    };
    setTimeout(close, STOP_TIMEOUT_MS).unref();
  }

  async #work(host: WorkingHost): Promise<readonly WorkerEnd[]> {
    for (let retry = MIN_RETRY_MS; ; ) {
      const { ends, failure } = await this.#connect(host);
      if (ends === null && host.state === 'working') retry = MIN_RETRY_MS;
      host.state = 'away';
      if (ends !== null || this.#drains || (failure === null && this.#over.signal.aborted))
        return this.#end(host, ends ?? []);
      const { code, message } = failure ?? UNHEARD;
      if (!PASSING.includes(code)) {
        this.#options.tell(`${host.name}: ${message}`);
        return this.#end(host, [failedEnd(host, message, code)]);
      }
      const isHopeless = this.#isHopeless();
      const ms = retry * (0.75 + Math.random() / 2);
      this.#options.tell(
        `${host.name}: ${message}${isHopeless ? '' : `. Trying again in ${formatDuration(ms)}`}`,
      );
      if (isHopeless) this.#over.abort();
      await sleep(ms, this.#over.signal);
      if (this.#over.signal.aborted)
        return this.#end(host, this.#drains ? [] : [failedEnd(host, message, code)]);
      retry = Math.min(2 * retry, MAX_RETRY_MS);
    }
  }

  /** Whether no host works, or will: those that can't be reached have never been. */
  #isHopeless(): boolean {
    return this.#hosts.every(({ state, hasWorked }) => state === 'ended' || (state === 'away' && !hasWorked));
  }

  async #end(host: WorkingHost, ends: readonly WorkerEnd[]): Promise<readonly WorkerEnd[]> {
    host.state = 'ended';
    if (!(await this.#isDone()) && !this.#isHopeless()) return ends;
    this.#over.abort();
    for (const { state, connection } of this.#hosts) if (state !== 'working') connection?.channel.close();
    return ends;
  }

  /** Whether no task is left, or will come. */
  async #isDone(): Promise<boolean> {
    const { queue } = this.#options;
    try {
      const search = await queue.search();
      const { active, pending } = await queue.counts();
      return active + pending === 0 && (search === null || search.isOver);
    } catch (error) {
      if (!isFailure(error)) throw error;
      return false; // the workers find out
    }
  }

  /** One connection, from its beginning to its end. @returns `ends` if the workers there have said how they ended */
  async #connect(
    host: WorkingHost,
  ): Promise<{ ends: readonly WorkerEnd[] | null; failure: HostFailure | null }> {
    const { words, queue, onFailure } = this.#options;
    let ends: readonly WorkerEnd[] | null = null;
    const channel = openChannel(host.host, {
      words: words(host.name),
      directory: host.directory,
      quietMs: this.#begin.silence,
      onBegin: () => {
        connection.session = new WorkerSession({
          ...{ queue, host: host.name, begin: this.#begin, onFailure },
          send: (line) => channel.send(line),
          hear: (message) => {
            ends = this.#hear(host, message) ?? ends;
          },
        });
        if (this.#drains) connection.session.drain();
      },
      onLine: (line) => {
        if (host.state !== 'working') this.#noteWorking(host);
        connection.session?.receive(line);
      },
    });
    const connection: NonNullable<WorkingHost['connection']> = { channel, session: null };
    host.connection = connection;
    const { failure, isOver } = await channel.ended;
    host.connection = null;
    connection.session?.close(isOver);
    return { ends, failure };
  }

  #noteWorking(host: WorkingHost): void {
    if (host.hasWorked) this.#options.tell(`${host.name}: connected again`);
    host.state = 'working';
    host.hasWorked = true;
  }

  /** @returns how the workers ended; null: they go on */
  #hear(host: WorkingHost, message: Readonly<Record<string, unknown>>): readonly WorkerEnd[] | null {
    const { say, ended } = WORDS(message, 'message');
    if (say !== undefined) this.#options.tell(`${host.name}: ${say}`);
    if (ended === undefined) return null;
    return ended.map(({ why, message: text }) =>
      why === 'error' ? failedEnd(host, text ?? 'unknown error') : { why, message: text, error: null },
    );
  }
}

/** The end of a host without workers. */
function failedEnd({ name }: WorkingHost, message: string, code = ''): WorkerEnd {
  const text = sanitize(`${name}: ${message}`, 1_000);
  const kind =
    code === 'ERR_HOST_DIRECTORY' || code === 'ERR_INVALID_ARGUMENT'
      ? 'ERR_INVALID_ARGUMENT'
      : 'ERR_NO_DRIVER';
  return { why: 'error', message: text, error: new GPUOwnerError(kind, text) };
}
