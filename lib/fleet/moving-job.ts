// Jobs that may move between machines while they wait, as files of the user who has submitted them. The mover alone changes a job's file;
// others leave a wish for its end beside it. Each file is written before the step that it tells of.
import {
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { errorCode, ifPossible, ifThere } from '../errors.ts';
import type { JobElsewhere } from '../jobs/index.ts';
import { hostName, readLink, schema, stateDirectory } from '../platform/index.ts';
import type { Environment } from './request.ts';

/** Between the end of a job's moves and the removal of its file, in ms. */
const KEPT_MS = 30 * 86_400_000;

/** Notes of jobs that have ended: cancelled by their users, or unknown to their hosts. */
export const CANCELLED = 'cancelled';
export const LOST = 'lost';

/** A place where a job stands or stood. */
export interface Place {
  host: string;
  /** Names this place there, and no other one. */
  key: string;
  /** The job's number there; null: not known yet. */
  id: number | null;
  /** The boot of that machine; null: not known yet. */
  boot: string | null;
  /** The user there; null: not known yet. */
  uid: number | null;
}

/**
 * submitting: into the queue of `next`; queued: it waits at `at`; holding: `next` is asked for GPUs; cancelling: `at` is asked to let it
 * go; confirming: `next` is asked to start it; settled: it is at `at` for good, or is over.
 */
const STEPS = ['submitting', 'queued', 'holding', 'cancelling', 'confirming', 'settled'] as const;

export interface MovingJob {
  id: number;
  name: string | null;
  command: string;
  count: number;
  /** The arguments of `submit` there: options, `--`, and the command. */
  words: string[];
  directory: string;
  /** Hosts with another directory. */
  directories: readonly (readonly [host: string, directory: string])[];
  environment: Environment;
  /** Hosts that may serve it. */
  hosts: string[];
  /** Jobs that must have ended before it joins a queue. */
  after: readonly JobElsewhere[];
  /** ms since 1970 */
  submitted: number;
  /** When it stops waiting, in ms since 1970; null: never. */
  giveUpAt: number | null;
  step: (typeof STEPS)[number];
  /** When its moves ended, in ms since 1970; null: they have not. */
  settled: number | null;
  at: Place | null;
  next: Place | null;
  /** Places that were given up without an answer: it is cancelled there as soon as they answer. */
  left: Place[];
  /** Remarks, in words. */
  note: string | null;
}

const { amount, among, epochMs, flag, listOf, nullable, or, pairOf, record, text, whole } = schema;
const PLACE = record({
  host: text,
  key: text,
  id: nullable(whole()),
  boot: nullable(text),
  uid: nullable(whole()),
});
const JOB: schema.Check<MovingJob> = record({
  id: whole(),
  name: nullable(text),
  command: text,
  count: whole(),
  words: listOf(text),
  directory: text,
  directories: listOf(pairOf(text, text)),
  environment: listOf(pairOf(text, text)),
  hosts: listOf(text),
  after: or(listOf(record({ host: text, id: whole(), isOk: flag })), []),
  submitted: epochMs,
  giveUpAt: nullable(amount()),
  step: among(STEPS),
  settled: nullable(epochMs),
  at: nullable(PLACE),
  next: nullable(PLACE),
  left: listOf(PLACE),
  note: nullable(text),
});

/** Where a job runs on a host. */
export function directoryOn(host: string, { directories, directory }: MovingJob): string {
  return new Map(directories).get(host) ?? directory;
}

/** The file by which the user of a job wants its end. */
export const cancelFile = (id: number) => `${id}.cancel`;

/** This user's moving jobs, as submitted on this machine: a home directory may be that of many. */
export class MovingJobs {
  readonly path: string;

  /** @throws ERR_JOBS */
  constructor() {
    this.path = join(stateDirectory(), 'gpu-owner', 'moving', hostName().replace(/[^A-Za-z0-9._-]/g, '-'));
  }

  /** The names of all files. */
  names(): string[] {
    // there are none
    return ifThere(() => readdirSync(this.path), []);
  }

  /** In order. */
  ids(names = this.names()): number[] {
    return names
      .flatMap((name) => /^([1-9]\d{0,8})\.json$/.exec(name)?.[1] ?? [])
      .map(Number)
      .sort((a, b) => a - b);
  }

  /** null: there is none. */
  read(id: number): MovingJob | null {
    return ifThere(() => schema.readAs(schema.jsonOf(JOB), readFileSync(this.#file(id), 'utf8')), null);
  }

  /** Jobs that may still move. */
  unsettled(): MovingJob[] {
    return this.ids()
      .flatMap((id) => this.read(id) ?? [])
      .filter(({ step }) => step !== 'settled');
  }

  /** Makes a job under the next number. */
  create(job: Omit<MovingJob, 'id'>): MovingJob {
    mkdirSync(this.path, { recursive: true, mode: 0o700 });
    this.#prune();
    for (let id = (this.ids().at(-1) ?? 0) + 1; ; id++) {
      try {
        writeFileSync(this.#file(id), '', { mode: 0o600, flag: 'wx' });
      } catch (error) {
        if (errorCode(error) === 'EEXIST') continue;
        throw error;
      }
      const made = { ...job, id };
      this.write(made);
      return made;
    }
  }

  write(job: MovingJob): void {
    const draft = join(this.path, `${job.id}.new.${process.pid}`);
    writeFileSync(draft, JSON.stringify(job), { mode: 0o600, flush: true });
    renameSync(draft, this.#file(job.id));
  }

  /** Has the mover cancel a job. */
  cancel(id: number): void {
    writeFileSync(join(this.path, cancelFile(id)), '', { mode: 0o600 });
  }

  /** When its user cancelled it, in ms since 1970; NaN: never. */
  cancelledAt(id: number): number {
    return statSync(join(this.path, cancelFile(id)), { throwIfNoEntry: false })?.mtimeMs ?? Number.NaN;
  }

  forgetCancel(id: number): void {
    rmSync(join(this.path, cancelFile(id)), { force: true });
  }

  #file(id: number): string {
    return join(this.path, `${id}.json`);
  }

  #prune(): void {
    for (const id of this.ids().slice(0, -1)) {
      const written = statSync(this.#file(id), { throwIfNoEntry: false })?.mtimeMs ?? Date.now();
      if (Date.now() - written <= KEPT_MS || this.read(id)?.step === 'queued') continue;
      rmSync(this.#file(id), { force: true });
      this.forgetCancel(id);
    }
  }

  /** Leads to the ssh-agent of the newest login: that of the login which started the mover may have ended. */
  get agent(): string {
    return join(this.path, 'agent');
  }

  /** Has the mover use the ssh-agent of this login, if that has one. Where the file system is full, the mover keeps the one it has. */
  lendAgent(agent = process.env.SSH_AUTH_SOCK): void {
    if (agent === undefined || agent === '' || agent === this.agent || agent === readLink(this.agent)) return;
    const draft = `${this.agent}.new.${process.pid}`;
    ifPossible(() => {
      rmSync(draft, { force: true }); // a process with this number may have been killed here
      symlinkSync(agent, draft);
      renameSync(draft, this.agent);
    }, undefined);
  }

  /** The process id of the mover; null: there is none. */
  get mover(): number | null {
    const pid = Number(ifThere(() => readFileSync(join(this.path, 'mover'), 'utf8'), ''));
    return pid > 0 && isMover(pid) ? pid : null;
  }

  /** Makes a process the mover. Two at a time do no harm: the machines decide where a job starts. @returns whether there is no other */
  appointMover(pid: number): boolean {
    if (this.mover !== null) return this.mover === pid;
    const path = join(this.path, 'mover');
    const draft = `${path}.${pid}`;
    writeFileSync(draft, String(pid), { mode: 0o600 });
    try {
      linkSync(draft, path);
      rmSync(draft);
    } catch (error) {
      if (errorCode(error) !== 'EEXIST') throw error;
      if (this.mover === null) renameSync(draft, path);
      else rmSync(draft);
    }
    return this.mover === pid;
  }

  retire(): void {
    if (this.mover === process.pid) rmSync(join(this.path, 'mover'), { force: true });
  }
}

function isThere(pid: number): boolean {
  return ifPossible(() => process.kill(pid, 0), false);
}

function isMover(pid: number): boolean {
  if (!isThere(pid)) return false;
  // there is no /proc
  return ifPossible(() => readFileSync(`/proc/${pid}/cmdline`, 'utf8').endsWith('\0mover\0'), true);
}
