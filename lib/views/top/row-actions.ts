// Actions of keys on the selected row: only jobs and processes of this user on this machine are touched.
import { GPUOwnerError } from '../../errors.ts';
import { cancelJob, JobOutputTail, JobStore, jobAt } from '../../jobs/index.ts';
import { formatSince, readProcessStat } from '../../platform/index.ts';
import { isOwn, type SelectableRow } from './rows.ts';

/** The grace of a job that is cancelled here, in ms: as that of `cancel`. */
const GRACE_MS = 10_000;

/** A question that is asked before something is done. */
export interface Question {
  text: string;
  onYes: () => void;
}

export interface OpenLog {
  title: string;
  tail: JobOutputTail;
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
      const { output, name, command, started } = jobAt(found.store, found.id);
      if (output === null) return `job ${found.id} has no output`;
      const since = formatSince(started);
      const title = `job ${found.id}${name === null ? '' : ` (${name})`}${since === null ? '' : ` since ${since}`}: ${command}`;
      return { title, tail: new JobOutputTail(output), below: 0 };
    });
  }

  cancel(row: SelectableRow | undefined): Reply {
    return attempt(() => {
      const found = ownJob(row, 'cancel');
      if (typeof found === 'string') return found;
      const { id, store } = found;
      const { command, name, state } = jobAt(store, id);
      if (state !== 'waiting' && state !== 'running') return `job ${id} has ended already`;
      return {
        text: `Cancel job ${id}? y/N  (${state}: ${name === null ? '' : `${name}, `}${command})`,
        onYes: () => void this.#cancel(store, id),
      };
    });
  }

  async #cancel(store: JobStore, id: number): Promise<void> {
    this.#say(`cancelling job ${id} ...`);
    try {
      const outcome = await cancelJob(store, id, GRACE_MS);
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
      return `pid ${pid} can't be ended: ${(error as Error).message}`;
    }
  }
}

/** A row's job, if it is one of this user's on this machine; otherwise why not. @param what is to be done with it */
function ownJob(row: SelectableRow | undefined, what: string): { id: number; store: JobStore } | string {
  if (row === undefined) return 'select a row first, with up and down';
  if (row.process !== null) return 'this is a process: k ends it; select a job';
  if (row.user === null) return 'nobody has leased this GPU';
  const { job, pid, user, machine } = row;
  if (machine.host !== null)
    return `it is on another machine: ssh ${machine.host} gpu-owner ${what}${job === null ? '' : ` ${job}`}`;
  if (!isOwn(row.uid)) return `this is a job of ${user}'s`;
  if (job !== null) return { id: job, store: JobStore.open() };
  const remedy = what === 'logs' ? 'read its output' : 'stop it';
  return `pid ${pid} is not a background job: ${remedy} where it was started`;
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
