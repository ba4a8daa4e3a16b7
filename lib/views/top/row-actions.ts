// Actions of keys on the selected row: only jobs of this user, and processes on this machine, are touched.
import type { Host } from '../../config/index.ts';
import { errorMessage, GPUOwnerError } from '../../errors.ts';
import { chooseHosts, commandOnHost } from '../../fleet/index.ts';
import { cancelNamed, isLiving, type Job, JobStore, jobAt } from '../../jobs/index.ts';
import { formatSince, outputLines, readProcessStat, sanitize } from '../../platform/index.ts';
import { followTail, TAIL_BYTES } from '../job-log.ts';
import { isOwn, type SelectableRow } from './rows.ts';

/** The grace of a job that is cancelled here, in ms: as that of `cancel`. */
const GRACE_MS = 10_000;
/** For the answer of a host besides, in ms. */
const ANSWER_MS = 15_000;

/** A question that is asked before something is done. */
export interface Question {
  text: string;
  onYes: () => void;
}

export interface OpenLog {
  title: string;
  tail: LogTail;
  /** How many lines below the last one shown; 0: it follows. */
  below: number;
}

/** The answer to a key: a message, a question or a log. */
export type Reply = string | Question | OpenLog;

export class RowActions {
  readonly #say: (message: string) => void;
  /** Processes that were told to end: when they began, by their number. */
  readonly #told = new Map<number, string>();

  /** @param say shows what has come of an action */
  constructor(say: (message: string) => void) {
    this.#say = say;
  }

  openLog(row: SelectableRow | undefined): Reply {
    return attempt(() => {
      const found = ownJob(row, 'logs');
      if (typeof found === 'string') return found;
      const { output, name, command, started } = found.job;
      if (output === null) return `job ${found.address} has no output`;
      const since = formatSince(started);
      const title = `job ${found.address}${name === null ? '' : ` (${name})`}${since === null ? '' : ` since ${since}`}: ${command}`;
      return { title, tail: new LogTail(found.host, found.id), below: 0 };
    });
  }

  cancel(row: SelectableRow | undefined): Reply {
    return attempt(() => {
      const found = ownJob(row, 'cancel');
      if (typeof found === 'string') return found;
      const { address, job } = found;
      const { command, name, state } = job;
      if (!isLiving(state)) return `job ${address} has ended already`;
      return {
        text: `Cancel job ${address}? y/N  (${state}: ${name === null ? '' : `${name}, `}${command})`,
        onYes: () => void this.#cancel(found),
      };
    });
  }

  async #cancel({ host, id, address }: OwnJob): Promise<void> {
    this.#say(`cancelling job ${address} ...`);
    try {
      if (host !== null) return this.#say(await cancelElsewhere(host, id));
      const outcome = await cancelNamed(JobStore.open(), id, GRACE_MS);
      const texts = {
        ended: `job ${id} is cancelled`,
        'not-alive': `job ${id} had ended already`,
        surviving: `job ${id} has processes that can't be ended: it ends with them`,
      };
      this.#say(texts[outcome]);
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      this.#say(error.message);
    }
  }

  endProcess(row: SelectableRow | undefined): Reply {
    const process = row?.process ?? null;
    if (row === undefined || process === null) return 'select a process first, with up and down';
    const { pid, user } = process;
    if (row.machine.host !== null) return `it is on another machine: ssh ${row.machine.host} kill ${pid}`;
    if (!isOwn(process.uid)) return `pid ${pid} is a process of ${user ?? 'another user'}'s`;
    const startTicks = readProcessStat(pid)?.startTicks;
    if (startTicks === undefined) return `pid ${pid} has ended already`;
    // A process that was told before, and is still there.
    const signal = this.#told.get(pid) === startTicks ? 'SIGKILL' : 'SIGTERM';
    return {
      text: `Send ${signal} to pid ${pid}? y/N  (${process.command ?? process.name ?? ''})`,
      onYes: () => this.#say(this.#signal(pid, startTicks, signal)),
    };
  }

  #signal(pid: number, startTicks: string, signal: 'SIGTERM' | 'SIGKILL'): string {
    // Another process may have its number by now.
    if (readProcessStat(pid)?.startTicks !== startTicks) return `pid ${pid} has ended already`;
    try {
      process.kill(pid, signal);
      this.#told.set(pid, startTicks);
      return `pid ${pid} was sent ${signal}${signal === 'SIGTERM' ? '; k again: SIGKILL' : ''}`;
    } catch (error) {
      return `pid ${pid} can't be ended: ${errorMessage(error)}`;
    }
  }
}

/** A background job of this user. */
interface OwnJob {
  /** null: this machine. */
  host: string | null;
  id: number;
  address: string;
  job: Job;
}

/** A row's job, if it is one of this user's; otherwise why not. @param what is to be done with it */
function ownJob(row: SelectableRow | undefined, what: string): OwnJob | string {
  if (row === undefined) return 'select a row first, with up and down';
  if (row.process !== null) return 'this is a process: k ends it; select a job';
  if (row.user === null) return 'nobody has leased this GPU';
  const { job: id, pid, user, machine } = row;
  const { host } = machine;
  if (host !== null) {
    const job = machine.jobs.find((each) => each.id === id && each.user === user);
    if (id !== null && job !== undefined) return { host, id, address: `${host}:${id}`, job };
    return `it is on another machine: ssh ${host} gpu-owner ${what}${id === null ? '' : ` ${id}`}`;
  }
  if (!isOwn(row.uid)) return `this is a job of ${user}'s`;
  if (id !== null) return { host: null, id, address: String(id), job: jobAt(JobStore.open(), id) };
  const remedy = what === 'logs' ? 'read its output' : 'stop it';
  return `pid ${pid} is not a background job: ${remedy} where it was started`;
}

function hostOf(name: string): Host {
  return chooseHosts(name)[0] as Host;
}

/** @returns what there is to say */
async function cancelElsewhere(host: string, id: number): Promise<string> {
  const answer = await commandOnHost(hostOf(host), ['cancel', String(id)], GRACE_MS + ANSWER_MS);
  if (answer.error !== null) return `${host}: ${answer.error.message}`;
  const [note = ''] = answer.notes.split('\n').map((line) => sanitize(line.replace(/^gpu-owner: /, ''), 200));
  return note === '' ? `job ${host}:${id} is cancelled` : `${host}: ${note}`;
}

/** The end of a job's output, while it grows. */
class LogTail {
  lines: readonly string[] = [];
  readonly #end = new AbortController();
  readonly #decoder = new TextDecoder();
  #text = '';

  /** @param host null: this machine */
  constructor(host: string | null, id: number) {
    const say = (reason: string) => {
      this.lines = [...this.lines, `(${host === null ? '' : `${host}: `}${reason})`];
    };
    const at = host === null ? null : hostOf(host);
    void followTail(at, id, (bytes) => this.#add(bytes), say, this.#end.signal).then((error) => {
      if (error !== null) say(error.message);
    });
  }

  #add(bytes: Uint8Array): void {
    if (bytes.length === 0) return;
    this.#text = (this.#text + this.#decoder.decode(bytes, { stream: true })).slice(-TAIL_BYTES);
    this.lines = outputLines(this.#text);
  }

  close(): void {
    this.#end.abort();
  }
}

/** An error with a cause on the machine is shown. */
function attempt(action: () => Reply): Reply {
  try {
    return action();
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    return error.message;
  }
}
