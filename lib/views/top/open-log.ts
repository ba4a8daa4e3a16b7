// The log of the selected row's job, as `top` shows it.
import { GPUOwnerError } from '../../errors.ts';
import { chooseHosts } from '../../fleet/index.ts';
import { type Job, JobStore, jobAt } from '../../jobs/index.ts';
import { formatSince, outputLines } from '../../platform/index.ts';
import { followTail, TAIL_BYTES } from '../job-log.ts';
import { isOwn, type SelectableRow } from './rows.ts';

export interface OpenLog {
  title: string;
  tail: LogTail;
  /** How many lines below the last one shown; 0: it follows. */
  below: number;
}

/** Opens the log of a row's job, if that is one of this user's; otherwise returns why not. */
export function openLog(row: SelectableRow | undefined): OpenLog | string {
  try {
    const found = ownJob(row);
    if (typeof found === 'string') return found;
    const { host, id, job } = found;
    const { output, name, command, started } = job;
    const address = host === null ? id : `${host}:${id}`;
    if (output === null) return `job ${address} has no output`;
    const since = formatSince(started);
    const title = `job ${address}${name === null ? '' : ` (${name})`}${since === null ? '' : ` since ${since}`}: ${command}`;
    return { title, tail: new LogTail(host, id), below: 0 };
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    return error.message;
  }
}

/** @returns the job and its host, null for this machine */
function ownJob(row: SelectableRow | undefined): { host: string | null; id: number; job: Job } | string {
  if (row === undefined) return 'select a row first, with up and down';
  if (row.process !== null) return 'this is a process; select a job';
  if (row.user === null) return 'nobody has leased this GPU';
  const { job: id, pid, user, machine } = row;
  const { host } = machine;
  if (host !== null) {
    const job = machine.jobs.find((each) => each.id === id && each.user === user);
    if (id !== null && job !== undefined) return { host, id, job };
    return `it is on another machine: ssh ${host} gpu-owner logs${id === null ? '' : ` ${id}`}`;
  }
  if (!isOwn(row.uid)) return `this is a job of ${user}'s`;
  if (id !== null) return { host: null, id, job: jobAt(JobStore.open(), id) };
  return `pid ${pid} is not a background job: read its output where it was started`;
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
    const [at = null] = host === null ? [] : chooseHosts(host);
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
