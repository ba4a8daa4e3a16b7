import { closeSync } from 'node:fs';
import type { Claim } from '../claims/index.ts';
import { simulatedMachine } from '../config/index.ts';
import type { Mark } from '../conventions/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { label } from '../gpus/index.ts';
import { native, nativeFile } from '../native.ts';
import { systemError } from '../platform/index.ts';
import type { JobClaim } from './job-claim.ts';
import { endHelpers } from './reaper.ts';

/** Names the variable with everything that Node.js has changed of its inheritance: the launcher writes it down. */
export const INHERITED = 'GPU_OWNER_INHERITED';

/**
 * Turns this process into the front of a keeper, which runs the command under the claim. Doesn't return.
 *
 * @param words how many of this process's last arguments are the command and its arguments
 * @throws ERR_INTERNAL when the keeper can't be started
 */
export function becomeKeeper(claim: JobClaim, words: number): never {
  const inherited = parseInherited(process.env[INHERITED]);
  delete process.env[INHERITED];
  Object.assign(process.env, environmentOf(claim));
  showSimulatedLibraries(process.env);
  const args = [
    'gpu-owner-keeper',
    'run',
    ...keeperArguments(claim),
    ...(inherited.sigign ? ['--ignore-signals', inherited.sigign] : []),
    ...(inherited.nofile ? ['--nofile', inherited.nofile] : []),
    '--gpus',
    `GPU ${claim.gpus.map(label).join(', ')}`,
    '--',
  ];
  return become(args, words, inherited.descriptors, inherited.dropped);
}

/** So that a claim inside the job is met from what the job holds. One that can't be proved leaves what is around it. */
export function environmentOf({ jobFile }: Pick<JobClaim, 'jobFile'>): { GPU_OWNER_JOB?: string } {
  return jobFile === null ? {} : { GPU_OWNER_JOB: jobFile.token };
}

/**
 * Turns this process into a keeper that holds the claim until standard input is closed. Doesn't return.
 *
 * @param answer the line for standard output. The keeper writes it: whoever reads it may send a signal at once
 */
export function becomeHolder(claim: JobClaim, answer: string): never {
  return become(['gpu-owner-keeper', 'hold', ...keeperArguments(claim), '--answer', answer], 0, [], 0);
}

function keeperArguments({ leases, marks, jobFile, placeholder }: JobClaim): string[] {
  endHelpers(placeholder?.pid); // of earlier attempts
  const input = placeholder === null ? null : inheritable(placeholder.input);
  if (placeholder !== null) closeSync(placeholder.input); // this process may stay, and shall not keep it going
  const first = leases[0];
  const { pid: _, ...record } = first?.record ?? {};
  const shared = leases.map(({ parentDescriptor }) => parentDescriptor).filter((each) => each !== null);
  return [
    '--leases',
    leases.map(({ descriptor }) => inheritable(descriptor)).join(','),
    ...(shared.length === 0 ? [] : ['--shared', shared.map(inheritable).join(',')]),
    ...leases.flatMap(({ paths }) => ['--lease-file', paths.own]),
    ...leases.flatMap(({ paths: { parent } }) => (parent === null ? [] : ['--lease-file', parent])),
    '--record',
    JSON.stringify(record),
    // The command has the proof of the job for as long as it has the lease.
    ...(jobFile === null ? [] : ['--inherited', String(inheritable(jobFile.descriptor))]),
    ...markOptions(jobFile === null ? marks : [...marks, jobFile], inheritable)(0),
    ...(placeholder === null
      ? []
      : ['--placeholder', String(input), '--placeholder-pid', String(placeholder.pid)]),
  ];
}

/**
 * Options for the marks that the keeper holds, and removes, for users of other conventions.
 * @param place gives a descriptor to it, and tells its number there, counted from what the result is called with
 */
function markOptions(
  marks: readonly Mark[],
  place: (descriptor: number) => number,
): (first: number) => string[] {
  const directories = new Map<Mark['directory'], number>();
  const placed = marks.map((mark) => {
    const { kind, directory } = mark;
    if (kind !== 'lock' && !directories.has(directory))
      directories.set(directory, place(directory.descriptor));
    return { ...mark, at: place(mark.descriptor), in: directories.get(directory) ?? 0 };
  });
  return (first) =>
    placed.flatMap(({ kind, token, name, at, in: directory }) =>
      kind === 'lock'
        ? ['--held', String(first + at)]
        : [
            kind === 'pid' ? '--pid-marker' : '--marker',
            `${first + at}:${token}:${first + directory}:${name}`,
          ],
    );
}

function inheritable(descriptor: number): number {
  const duplicate = native().processInheritable(descriptor);
  if (duplicate >= 0) return duplicate;
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `no file descriptor is left for the keeper: ${systemError(-duplicate)}.`,
  );
}

function become(args: string[], words: number, descriptors: readonly number[], dropped: number): never {
  const path = nativeFile('gpu-owner-keeper');
  const { driverHasCallOut, processExec, processExecInChild } = native();
  // A thread that is stuck in the kernel lets no process become another program.
  const error = (driverHasCallOut() ? processExecInChild : processExec)(
    path,
    args,
    words,
    descriptors,
    dropped,
  );
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `the keeper ${path} can't be started: ${systemError(-error)}. Is the package complete?`,
  );
}

/** `sigign=0000000000000001 nofile=1024 fds=3,4 dropped=1`; what isn't of this form counts as nothing. */
export function parseInherited(text = '') {
  const value = (pattern: RegExp) => pattern.exec(text)?.[1];
  return {
    sigign: value(/(?:^| )sigign=([0-9a-f]{1,16})(?: |$)/),
    nofile: value(/(?:^| )nofile=(\d{1,10})(?: |$)/),
    dropped: Number(value(/(?:^| )dropped=(\d{1,4})(?: |$)/) ?? 0),
    descriptors: (value(/(?:^| )fds=(\d{1,9}(?:,\d{1,9}){0,99})(?: |$)/) ?? '')
      .split(',')
      .filter(Boolean)
      .map(Number),
  };
}

/** On a simulated machine, a command finds the driver's libraries as it would find the real ones. */
export function showSimulatedLibraries(env: NodeJS.ProcessEnv): void {
  if (simulatedMachine() === null) return;
  const { LD_LIBRARY_PATH } = env;
  env.LD_LIBRARY_PATH = nativeFile('simulator') + (LD_LIBRARY_PATH ? `:${LD_LIBRARY_PATH}` : '');
}

/** A command to be run under the leases of a worker, which keeps them. */
export interface SupervisedTask {
  /** The program, looked for in the environment's PATH, and its arguments. */
  words: readonly string[];
  /** All of its environment; on a simulated machine its libraries are added. */
  env: NodeJS.ProcessEnv;
  /** Where it starts. */
  directory: string;
  /** A descriptor of a file: its standard output and error. Standard input is /dev/null. */
  output: number;
  /** The claim that it runs under. */
  claim: Pick<Claim, 'gpus' | 'leases' | 'marks' | 'jobFile'>;
  /** Descriptors that are to stay open as long as anything of the command lives. */
  descriptors: readonly number[];
  /** The command in the leases' records, for people. */
  title: string;
  /** Between SIGTERM and SIGKILL when the worker dies, in ms. */
  grace: number;
}

const MAX_TITLE_LENGTH = 300; // characters
/** Changes that make this process's environment another one. Of the rest, every byte stays: strings can't carry all. */
export function changesTo(env: NodeJS.ProcessEnv): string[] {
  const names = new Set([...Object.keys(process.env), ...Object.keys(env)]);
  return [...names].flatMap((name) => {
    const value = env[name];
    if (value === process.env[name]) return [];
    return [value === undefined ? name : `${name}=${value}`];
  });
}

/** Builds everything that the keeper of a task is given: descriptors, and its arguments once their numbers in it are known. */
export function taskArguments({
  words,
  directory,
  claim,
  descriptors: others,
  title,
  grace,
}: SupervisedTask) {
  const { leases, marks, jobFile, gpus } = claim;
  const descriptors: number[] = [];
  // The socket comes first.
  const place = (descriptor: number) => descriptors.push(descriptor);
  const own = leases.map(({ descriptor }) => place(descriptor));
  const shared = leases.map(({ parentDescriptor }) => parentDescriptor).filter((each) => each !== null);
  const parents = shared.map(place);
  const inherited = [...others, ...(jobFile === null ? [] : [jobFile.descriptor])].map(place);
  const marked = markOptions(jobFile === null ? marks : [...marks, jobFile], place);
  const { pid: _, ...record } = leases[0]?.record ?? {};
  const ways = parseInherited(process.env[INHERITED]);
  const args = (first: number) => {
    const at = (places: readonly number[]) => places.map((each) => first + each).join(',');
    return [
      '--control',
      String(first),
      '--leases',
      at(own),
      ...(parents.length === 0 ? [] : ['--shared', at(parents)]),
      ...(inherited.length === 0 ? [] : ['--inherited', at(inherited)]),
      ...marked(first),
      ...leases.flatMap(({ paths }) => ['--lease-file', paths.own]),
      ...leases.flatMap(({ paths: { parent } }) => (parent === null ? [] : ['--lease-file', parent])),
      '--record',
      JSON.stringify({ ...record, command: title.slice(0, MAX_TITLE_LENGTH) }),
      '--gpus',
      `GPU ${gpus.map(label).join(', ')}`,
      '--grace',
      String(grace),
      '--directory',
      directory,
      ...(ways.sigign ? ['--ignore-signals', ways.sigign] : []),
      ...(ways.nofile ? ['--nofile', ways.nofile] : []),
      '--',
      ...words,
    ];
  };
  return { descriptors, args };
}
