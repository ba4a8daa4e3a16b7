// One program goes on in several processes, one after the other: `submit` leaves its caller's session, a long wait goes on in the small
// waiter, and a preempted command starts once more. This file alone reads and writes what such a process leaves to the next one: arguments,
// variables and descriptors. docs/decisions/041-cheap-waiting.md
import { closeSync, existsSync, fstatSync, readFileSync, writeSync } from 'node:fs';
import { BEFORE_EXEC } from '../bundle.ts';
import { type HandedOverWait, type IdleWait, WAIT_QUEUE_FILE, WaitHandover } from '../claims/index.ts';
import { GPUOwnerError, ifPossible } from '../errors.ts';
import { native, nativeFile, nativeProgram } from '../native.ts';
import {
  hideExtraCertificates,
  ownProgram,
  pathIn,
  restoreMessages,
  saveMessages,
  schema,
  setVariables,
  showExtraCertificates,
  systemError,
  TIMEOUTS,
  usageError,
} from '../platform/index.ts';
import {
  changesTo,
  FIRST_DESCRIPTOR,
  INHERITED,
  KEEPER,
  parseInherited,
  withoutDescriptors,
} from './inherited.ts';
import { readJob, readLimit } from './job-record.ts';
import type { MadeJob } from './job-store.ts';

/** How a process of `run`, `submit` or `exp run` was started, and what the process before it has left to it. */
export interface Start {
  /**
   * The process that has started it, the last one if several have:
   * first: a user's;
   * part: that which has made the job, a part of an array or a job that is submitted again;
   * placed: the job's own, which has left its caller's session and has waited for other jobs;
   * woken: the waiter, as it is time to look at GPUs;
   * requeued: the keeper, after it has ended the command for another request, or the command has failed;
   * controller: the keeper of an array or of a sweep, whose parts or tasks this process starts.
   */
  kind: 'first' | 'part' | 'placed' | 'woken' | 'requeued' | 'controller';
  /** The background job that this process is; null: it is none, or makes one. */
  job: MadeJob | null;
  /** The job's tag in the wait queue, as text; undefined: it had none yet. */
  order: string | undefined;
  /** The pipe to the parent that waits until the job is announced; null: there is none, or the job was announced. */
  submitter: number | null;
  /** The wait that goes on here; null: it begins here. */
  wait: HandedOverWait | null;
  /** How often the command was preempted before, for how many ms it has run in all, how often it had failed, and whether it has just done so. */
  preemptions: number;
  ranMs: number;
  failures: number;
  hasFailed: boolean;
  /** The number of the array or sweep; null: this process is no controller. */
  controls: number | null;
}

/** The start of a process that is a job. */
export type JobStart = Start & { job: MadeJob };

/** Names the variable that makes a process that of a job: `part LOCK:FILE`, `placed LOCK:FILE` (descriptors), `controller ID`. */
const ROLE = 'GPU_OWNER_ROLE';
/** Names the variable by which a command that is started once more knows it; see native/keeper/command.cc. */
const REQUEUED = 'GPU_OWNER_REQUEUED';
/** Names the variable with the pipe to the submitter. See native/keeper/submit.h. */
const SUBMITTER = 'GPU_OWNER_SUBMITTER';
/** Names the variable that says how a caller wants to read errors. */
const ERRORS = 'GPU_OWNER_ERRORS';
/** Names the variable by which a wait goes on in another process. */
const WAITING = 'GPU_OWNER_WAITING';
/** Version of its contents. With another version, the descriptors are closed and the wait restarts. */
const FORMAT = 3;
/** The kernel refuses a variable of more than 128 KiB. */
const MAX_MESSAGE_CHARACTERS = 50_000;

/** A line that says how long a wait has lasted. */
export interface WaitLine {
  before: string;
  after: string;
  /** On the clock of `now()`. */
  since: number;
  /** A terminal with fewer columns has no room for it. */
  columns: number;
}

/** Variables that are for this process alone. */
export const OWN_VARIABLES: readonly string[] = [ERRORS, WAITING, SUBMITTER, ROLE];

/**
 * Takes over what the process before this one has left. To be called once, before anything is said, as people have been told much already.
 * @throws ERR_INVALID_ARGUMENT
 */
export function readStart(): Start {
  const wait = takeWait();
  const submitter = takeSubmitter();
  const { kind: role, ...made } = takeRole();
  // The variable stays for the processes that are to come before the command.
  const [, times, ran, failed, last] =
    /^(\d{1,9}):(\d{1,15}):(\d{1,9}):([01])$/.exec(process.env[REQUEUED] ?? '') ?? [];
  const [preemptions, ranMs, failures] = [Number(times ?? 0), Number(ran ?? 0), Number(failed ?? 0)];
  const isRequeued = preemptions + failures > 0;
  const kind = role === 'controller' ? role : wait !== null ? 'woken' : isRequeued ? 'requeued' : role;
  return { kind, ...made, submitter, wait, preemptions, ranMs, failures, hasFailed: last === '1' };
}

/** By descriptor, not by path: the job continues if the state directory is moved or removed. */
function takeRole(): Pick<Start, 'kind' | 'job' | 'order' | 'controls'> {
  const role = process.env[ROLE];
  if (role === undefined) return { kind: 'first', job: null, order: undefined, controls: null };
  setVariables({ [ROLE]: undefined });
  const [, placed, lock, file, controls] =
    /^(?:(?:part|(placed)) (\d{1,9}):(\d{1,9})|controller (\d{1,9}))$/.exec(role) ?? [];
  if (controls !== undefined)
    return { kind: 'controller', job: null, order: undefined, controls: Number(controls) };
  // Any program can set the variable.
  const found = file === undefined ? null : readJob(Number(file));
  if (found === null) throw usageError(`${ROLE} is for gpu-owner itself: unset this variable`);
  const job: MadeJob = { request: found.request, lock: Number(lock), file: Number(file) };
  const kind = placed === undefined ? 'part' : 'placed';
  return { kind, job, order: found.progress?.order, controls: null };
}

function takeSubmitter(): number | null {
  const text = process.env[SUBMITTER];
  if (text === undefined) return null;
  setVariables({ [SUBMITTER]: undefined });
  // Any program can set the variable.
  const descriptor = /^\d{1,9}$/.test(text) ? Number(text) : 0;
  if (descriptor < 3 || !ifPossible(() => fstatSync(descriptor).isFIFO(), false)) return null;
  return native().processCloseOnExec(descriptor) === 0 ? descriptor : null;
}

/** null: this process wasn't started by a waiter. */
function takeWait(): HandedOverWait | null {
  const text = process.env[WAITING];
  if (text !== undefined) setVariables({ [WAITING]: undefined });
  const [, format, list = '', json = ''] = /^(\d+) fds=([\d,]*) (.*)$/s.exec(text ?? '') ?? [];
  const descriptors = list.split(',').map(Number).filter(isHandedOn);
  // Nothing of it is for the command, but for what the caller hands on himself.
  const isOpen = descriptors.every((descriptor) => native().processCloseOnExec(descriptor) === 0);
  const left = format === String(FORMAT) && isOpen ? schema.readAs(schema.jsonOf(LEFT), json) : null;
  if (left !== null) {
    const { rested, keep, told } = left;
    if ([rested.slot.descriptor, ...keep].every((each) => descriptors.includes(each))) {
      restoreMessages(told);
      return rested;
    }
  }
  for (const descriptor of descriptors) native().fileClose(descriptor);
  return null;
}

/** Other descriptors are not from a waiter: any program can set the variable. */
function isHandedOn(descriptor: number): boolean {
  return Number.isSafeInteger(descriptor) && descriptor >= FIRST_DESCRIPTOR && descriptor < 2 ** 31;
}

const { amount, listOf, nullable, pairOf, record, text, whole } = schema;

/** Parses and checks the text that {@link waitingVariable} writes: any program can set a variable. */
const LEFT = record({
  rested: record({
    slot: record({
      descriptor: whole(),
      number: whole(),
      since: text,
      order: text,
      asked: listOf(pairOf(whole(), amount())),
    }),
    rest: nullable(record({ began: amount(), since: amount(), end: nullable(amount()) })),
  }),
  keep: listOf(whole()),
  told: listOf(pairOf(text, text)),
});

/** The environment variable that has a process go on with a wait. @param messages as `saveMessages` has it */
function waitingVariable(
  wait: HandedOverWait,
  keep: readonly number[] = [],
  messages: ReturnType<typeof saveMessages> = [],
): [name: string, value: string] {
  const descriptors = [wait.slot.descriptor, ...keep];
  return [
    WAITING,
    `${FORMAT} fds=${descriptors.join(',')} ${JSON.stringify({ rested: wait, keep, told: messages })}`,
  ];
}

/** Makes this program's next process that of the same job. */
function placedIn(job: MadeJob | null): Record<string, string | undefined> {
  return { [ROLE]: job === null ? undefined : `placed ${job.lock}:${job.file}` };
}

/** This program as it was started, with all arguments: `words` of them are to be passed on as bytes. */
function sameProgram() {
  return { program: [process.execPath, ...process.execArgv], words: process.argv.length - 1 };
}

/** `woken`: lets a claim of this process hand its wait over, where that lasts long. */
export function waitHandover(start: Start, line: (() => WaitLine | null) | undefined): WaitHandover {
  const become = (idle: IdleWait, next: HandedOverWait) => becomeWaiter(start, idle, next, line?.() ?? null);
  const file = start.job?.file;
  const limit = file === undefined ? null : readLimit(file);
  const isStale = () => file !== undefined && readLimit(file) !== limit;
  return new WaitHandover(start.wait, become, { isShown: line !== undefined, isStale });
}

/**
 * Turns this process into a small one that waits and then restarts this program. Everything that the caller of this process had it
 * inherit stays. Returns only if that isn't possible.
 */
function becomeWaiter(start: Start, idle: IdleWait, next: HandedOverWait, line: WaitLine | null): void {
  const { driverHasCallOut, cudaHasCallOut, processExec, processInheritable } = native();
  // A thread that is stuck in the kernel lets no process become another program.
  if (driverHasCallOut() || cudaHasCallOut()) return;
  const { slot, directory, locks, ahead, movesOn, leases, seenAt, until } = idle;
  const inherited = parseInherited(process.env[INHERITED]);
  const passed: number[] = [];
  const give = (descriptor: number) => {
    const duplicate = processInheritable(descriptor);
    if (duplicate >= 0) passed.push(duplicate);
    return duplicate;
  };
  const queue = give(slot.descriptor);
  const { program, words } = sameProgram();
  const keep = start.job === null ? [] : [start.job.lock, start.job.file];
  const needs = [process.execPath, process.argv[1] ?? '', import.meta.filename, nativeFile(KEEPER)];
  const args = [
    KEEPER,
    'wait',
    ...locks.flatMap(({ descriptor, byte }) => ['--lock', `${give(descriptor)}:${byte}`]),
    ...['--queue', `${queue}:${slot.number}`, '--queue-path', pathIn(directory.path, WAIT_QUEUE_FILE)],
    ...ahead.flatMap((number) => ['--ahead', String(number)]),
    ...(movesOn ? ['--suspended', 'next'] : []),
    ...leases.flatMap((lease) => ['--lease', String(give(lease))]),
    ...['--bookings', String(Math.floor(seenAt))],
    ...(Number.isFinite(until) ? ['--until', String(Math.ceil(until))] : []),
    ...needs.filter((path) => existsSync(path)).flatMap((path) => ['--needs', path]),
    ...['--needs-timeout', String(TIMEOUTS.upgrade)],
    ...(line === null
      ? []
      : [
          ...['--line-before', line.before, '--line-after', line.after],
          ...['--line-since', String(Math.floor(line.since)), '--line-columns', String(line.columns)],
        ]),
    ...(inherited.sigign ? ['--ignore-signals', inherited.sigign] : []),
    ...['--', ...program],
  ];
  if (passed.length === 1 + locks.length + leases.length) {
    const saved = saveMessages();
    const messages = JSON.stringify(saved).length > MAX_MESSAGE_CHARACTERS ? [] : saved;
    const [name, value] = waitingVariable({ ...next, slot: { ...slot, descriptor: queue } }, keep, messages);
    setVariables({ ...placedIn(start.job), [name]: value });
    hideExtraCertificates();
    process.emit(BEFORE_EXEC as 'exit', 0);
    const descriptors = [...inherited.descriptors, ...keep, queue];
    processExec(nativeProgram(KEEPER), args, words, descriptors, 0);
    setVariables({ [WAITING]: undefined, [ROLE]: undefined });
    showExtraCertificates();
  }
  for (const duplicate of passed) closeSync(duplicate);
}

/**
 * `placed`: turns this process into another program, which starts this one again as the same job. Returns only where a thread that is stuck
 * in the kernel lets no process become another program.
 * @param before the words of that program @param descriptors that it needs @throws ERR_INTERNAL
 */
export function becomePlaced(
  start: JobStart,
  before: readonly [string, ...string[]],
  descriptors: readonly number[],
): void {
  const { driverHasCallOut, cudaHasCallOut, processExec } = native();
  if (driverHasCallOut() || cudaHasCallOut()) return;
  const { job, submitter } = start;
  const { program, words } = sameProgram();
  const passed = [job.lock, job.file, ...descriptors, ...(submitter === null ? [] : [submitter])];
  setVariables({ ...placedIn(job), ...(submitter === null ? {} : { [SUBMITTER]: String(submitter) }) });
  hideExtraCertificates();
  process.emit(BEFORE_EXEC as 'exit', 0);
  const error = processExec(before[0], [...before, ...program], words, passed, 0);
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `job ${job.request.id} can't be started: ${before[0]}: ${systemError(-error)}.`,
  );
}

/**
 * `part`: starts the first process of a job that this process has made, with the job's own arguments and environment.
 * @returns 0 as soon as that process has announced the job, else its exit code
 */
export function startJob(
  { request, lock, file }: MadeJob,
  files: { arguments: Buffer; environment: Buffer },
): number {
  const program = nativeFile(KEEPER);
  const errors = process.env[ERRORS];
  const variables = [
    `${ROLE}=part ${FIRST_DESCRIPTOR}:${FIRST_DESCRIPTOR + 1}\0`,
    ...(errors === undefined ? [] : [`${ERRORS}=${errors}\0`]),
  ];
  const code = native().processRun(
    program,
    [KEEPER, 'submit', '--', ...ownProgram(...request.start)],
    files.arguments,
    Buffer.concat([files.environment, ...variables.map((each) => Buffer.from(each))]),
    FIRST_DESCRIPTOR,
    [lock, file],
  );
  if (code >= 0) return code;
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `job ${request.id} can't be started: ${program}: ${systemError(-code)}.`,
  );
}

/** `controller`: has this program, started again, be that of an array or a sweep. */
export function controllerOf({ request }: MadeJob): ReturnType<typeof sameProgram> {
  setVariables({ [ROLE]: `controller ${request.id}` });
  return sameProgram();
}

/**
 * `requeued`: options of a keeper that restarts its command, and the program. To be called when the environment is the command's.
 * @param command how many of the program's words are the command's @param retry how often a command restarts, and after which exit code; null: never
 */
export function requeueOptions(start: Start, command: number, retry: string | null) {
  const { job, preemptions, ranMs, failures } = start;
  const { program, words } = sameProgram();
  const options = [
    ...['--requeue', String(program.length + words - command)],
    ...['--requeued', `${preemptions}:${ranMs}:${failures}`],
    ...(retry === null ? [] : ['--retry', retry]),
    ...(job === null ? [] : ['--kept', String(job.lock)]),
    ...changesTo(environmentAtStart(job)).flatMap((change) => ['--requeue-environment', change]),
  ];
  return { options, program, words };
}

/** The environment as it was when this process started, but for what was for this process alone. */
function environmentAtStart(job: MadeJob | null): NodeJS.ProcessEnv {
  const before: NodeJS.ProcessEnv = Object.create(null);
  for (const entry of readFileSync('/proc/self/environ', 'utf8').split('\0')) {
    const [name = '', ...value] = entry.split('=');
    if (name !== '') before[name] = value.join('=');
  }
  for (const name of [WAITING, REQUEUED, SUBMITTER, ...(job === null ? [] : [ERRORS])]) delete before[name];
  Object.assign(before, placedIn(job));
  // Descriptors of the caller are closed by then.
  before[INHERITED] &&= withoutDescriptors(before[INHERITED]);
  return before;
}

/** Variables of a command that may restart. */
export function restartVariables({ preemptions, failures }: Start): Record<string, string | undefined> {
  return {
    GPU_OWNER_RESTART: String(preemptions + failures),
    [REQUEUED]: undefined,
  };
}

/**
 * `first`, below a parent that waits until the job is announced: starts this program again as its child, unless it has one. The launcher
 * does so itself, and other callers start Node.js. @throws ERR_INTERNAL if that isn't possible
 */
export function belowSubmitter(start: Start): Start {
  if (start.submitter !== null) return start;
  process.emit(BEFORE_EXEC as 'exit', 0);
  const program = nativeFile(KEEPER);
  const { program: same, words } = sameProgram();
  const { descriptors } = parseInherited(process.env[INHERITED]);
  const error = native().processExec(program, [KEEPER, 'submit', '--', ...same], words, descriptors, 0);
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `${program} can't be started: ${systemError(-error)}. Is the package complete?`,
  );
}

/** Lets the submitter end, with success: the job goes on without it. */
export function leaveSubmitter({ submitter }: Start): void {
  setVariables({ [ERRORS]: undefined });
  if (submitter === null) return;
  ifPossible(() => writeSync(submitter, '\n'), 0); // the submitter may have been killed
  closeSync(submitter);
}

export function isJob(start: Start): start is JobStart {
  return start.job !== null;
}
