// The options with which a keeper is started.
import { closeSync } from 'node:fs';
import type { Claim } from '../claims/index.ts';
import type { Mark } from '../conventions/index.ts';
import { label } from '../gpus/index.ts';
import { TIMEOUTS } from '../platform/index.ts';
import type { IdleLimit } from './idle-limit.ts';
import { inheritable, type parseInherited } from './inherited.ts';
import type { PlaceholderProcess } from './placeholder-process.ts';
import { endHelpers } from './reaper.ts';
import { pythonPath } from './stand-ins.ts';
import type { TimeLimit } from './time-limit.ts';

/** A background job, as its keeper's options describe it. */
export interface BackgroundJob {
  /** Descriptors of the job's lock and of its file, which programs inherit from this process. */
  lock: number;
  file: number;
  /** How much of its output is kept, in bytes; null: all. */
  logLimit: number | null;
  /** A program that is started when the job's user is warned that its GPUs do nothing; none for []. */
  idleNotifier(limit: IdleLimit | null): readonly string[];
  /** A program that is started when the job has ended, and its arguments; none for []. */
  afterwards: readonly string[];
}

/** The parts of a claim that its keeper is given. */
export type KeptClaim = Pick<Claim, 'gpus' | 'leases' | 'marks' | 'jobFile' | 'cpus'>;

export function descriptorsOf(job: BackgroundJob | null): number[] {
  return job === null ? [] : [job.lock, job.file];
}

export function jobOptions(job: BackgroundJob | null): string[] {
  if (job === null) return [];
  const log = job.logLimit === null ? [] : ['--log', `${inheritable(1)}:${job.logLimit}`];
  return [
    '--inherited',
    String(job.lock),
    '--job',
    String(job.file),
    ...log,
    ...job.afterwards.flatMap((word) => ['--then', word]),
  ];
}

/** So that a claim inside the job is met from what the job holds. One that can't be proved leaves what is around it. */
export function environmentOf({ gpus, leases, jobFile }: KeptClaim): Record<string, string> {
  const inside = jobFile === null ? {} : { GPU_OWNER_JOB: jobFile.token, ...pythonPath() };
  return { ...inside, ...memoryVariables(gpus, leases) };
}

/** Tells the command, and frameworks that document a variable for it, how much memory is its own; of several GPUs the least. */
function memoryVariables(gpus: KeptClaim['gpus'], leases: KeptClaim['leases']): Record<string, string> {
  const bytes = Math.min(...leases.map(({ shareBytes }) => shareBytes ?? Number.POSITIVE_INFINITY));
  if (!Number.isFinite(bytes)) return {};
  const total = Math.max(...gpus.map(({ memory }) => memory.totalBytes ?? 0));
  const { XLA_PYTHON_CLIENT_MEM_FRACTION: xla, TF_FORCE_GPU_ALLOW_GROWTH: tensorflow } = process.env;
  // The value of a job around this one is not the user's own.
  const isOurs = process.env.GPU_OWNER_MEMORY !== undefined;
  const fraction = (Math.floor((bytes / total) * 1_000) / 1_000).toString();
  return {
    GPU_OWNER_MEMORY: String(bytes),
    ...(total > 0 && (xla === undefined || isOurs) ? { XLA_PYTHON_CLIENT_MEM_FRACTION: fraction } : {}),
    ...(tensorflow === undefined ? { TF_FORCE_GPU_ALLOW_GROWTH: 'true' } : {}),
  };
}

export function limitOptions(limit: TimeLimit | null): string[] {
  if (limit === null) return [];
  const { ms, text, notice } = limit;
  return [
    '--time-limit',
    `${ms}:${text}`,
    '--grace',
    String(TIMEOUTS.grace),
    ...(notice === null ? [] : ['--notice', `${notice.signal}:${notice.ms}`]),
  ];
}

export function placeholderOptions(placeholder: PlaceholderProcess | null): string[] {
  endHelpers(placeholder?.pid); // helpers of earlier attempts
  if (placeholder === null) return [];
  const input = inheritable(placeholder.input);
  closeSync(placeholder.input); // this process may stay, and shall not keep it going
  return ['--placeholder', String(input), '--placeholder-pid', String(placeholder.pid)];
}

/**
 * Options for what a keeper holds, and removes at the end.
 * @param place gives a descriptor to it, and tells its number there @param also descriptors that the command is to have open
 * @param changes to the leases' records
 */
export function keeperOptions(
  { leases, marks, jobFile }: KeptClaim,
  place: (descriptor: number) => number,
  also: readonly number[] = [],
  changes: { command?: string } = {},
): string[] {
  const list = (option: string, descriptors: readonly number[]) =>
    descriptors.length === 0 ? [] : [option, descriptors.map(place).join(',')];
  const { pid: _, ...record } = leases[0]?.record ?? {};
  return [
    // Before the leases: where the keeper is killed, descriptors end in their order.
    ...list(
      '--shared',
      leases.flatMap(({ enclosingDescriptors }) => enclosingDescriptors),
    ),
    ...list(
      '--leases',
      leases.map(({ descriptor }) => descriptor),
    ),
    ...leases.flatMap(({ paths }) => ['--lease-file', paths.own]),
    ...leases.flatMap(({ paths: { enclosing } }) => enclosing.flatMap((path) => ['--lease-file', path])),
    '--record',
    JSON.stringify({ ...record, ...changes }),
    // The command has the proof of the job for as long as it has the lease.
    ...list('--inherited', jobFile === null ? also : [...also, jobFile.descriptor]),
    ...markOptions(jobFile === null ? marks : [...marks, jobFile], place),
  ];
}

/** Options for the marks that the keeper holds, and removes, for users of other conventions. */
function markOptions(marks: readonly Mark[], place: (descriptor: number) => number): string[] {
  const directories = new Map<Mark['directory'], number>();
  return marks.flatMap(({ kind, directory, descriptor, token, name, isShared = false }) => {
    if (kind === 'lock') return ['--held', String(place(descriptor))];
    const within = directories.get(directory) ?? place(directory.descriptor);
    directories.set(directory, within);
    const option = kind === 'pid' ? 'pid-marker' : 'marker';
    return [`--${isShared ? 'shared-' : ''}${option}`, `${place(descriptor)}:${token}:${within}:${name}`];
  });
}

/** Options for the command of a keeper: what it is called in messages, and what Node.js has changed of its inheritance. */
export function commandOptions(
  { gpus, cpus }: Pick<KeptClaim, 'gpus' | 'cpus'>,
  { sigign, nofile }: ReturnType<typeof parseInherited>,
): string[] {
  return [
    '--gpus',
    gpus.length === 0 ? '' : `GPU ${gpus.map(label).join(', ')}`,
    ...(sigign ? ['--ignore-signals', sigign] : []),
    ...(nofile ? ['--nofile', nofile] : []),
    ...(cpus === undefined ? [] : ['--cpus', cpus]),
  ];
}
