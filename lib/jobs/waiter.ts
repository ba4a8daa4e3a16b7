import { closeSync, existsSync } from 'node:fs';
import { BEFORE_EXEC } from '../bundle.ts';
import { type HandedOverWait, type IdleWait, WAIT_QUEUE_FILE, WaitHandover } from '../claims/index.ts';
import { native, nativeFile, nativeProgram } from '../native.ts';
import { pathIn, restoreMessages, saveMessages, schema, setVariables, TIMEOUTS } from '../platform/index.ts';
import {
  FIRST_DESCRIPTOR,
  hideExtraCertificates,
  INHERITED,
  KEEPER,
  parseInherited,
  showExtraCertificates,
} from './inherited.ts';

/** Names the variable by which a wait goes on in another process. */
export const WAITING = 'GPU_OWNER_WAITING';
/** The form of its contents: what is left in another one is closed, and the wait begins anew. */
const FORMAT = 2;
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

/** How this program is started after a wait: the words before the last `own` arguments of this process, which are passed on as bytes. */
export interface Restart {
  words: readonly string[];
  own: number;
}

/** A wait that the process before this one began; see {@link continueWait}. */
export interface ContinuedWait {
  received: HandedOverWait | null;
  /** Descriptors that were handed on, in their order. */
  keep: readonly number[];
}

/**
 * Takes over what a waiter left for this process, if it was started by one. To be called before anything is said, as people have been
 * told much already.
 */
export function continueWait(): ContinuedWait {
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
      return { received: rested, keep };
    }
  }
  for (const descriptor of descriptors) native().fileClose(descriptor);
  return { received: null, keep: [] };
}

/** Other descriptors are not from a waiter: anybody can set the variable. */
function isHandedOn(descriptor: number): boolean {
  return Number.isSafeInteger(descriptor) && descriptor >= FIRST_DESCRIPTOR && descriptor < 2 ** 31;
}

const { amount, listOf, nullable, pairOf, record, text, whole } = schema;

/** The text that {@link waitingVariable} writes, checked, as anybody can set a variable. */
const LEFT = record({
  rested: record({
    slot: record({ descriptor: whole(), number: whole(), since: text, order: text }),
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

/** Lets a claim of this process hand its wait over, where that lasts long. @param keep descriptors to hand on, numbered 200 or higher */
export function waitHandover(
  { received }: ContinuedWait,
  keep: readonly number[],
  line: (() => WaitLine | null) | undefined,
  restart: Restart = { words: [], own: process.argv.length - 1 },
): WaitHandover {
  const become = (idle: IdleWait, next: HandedOverWait) =>
    becomeWaiter(idle, next, keep, line?.() ?? null, restart);
  return new WaitHandover(received, become, line !== undefined);
}

/**
 * Turns this process into a small one that waits, and then starts this program anew. Everything that the caller of this process had it
 * inherit stays. Returns only if that isn't possible.
 */
function becomeWaiter(
  idle: IdleWait,
  next: HandedOverWait,
  keep: readonly number[],
  line: WaitLine | null,
  { words, own }: Restart,
): void {
  const { driverHasCallOut, cudaHasCallOut, processExec, processInheritable } = native();
  // A thread that is stuck in the kernel lets no process become another program.
  if (driverHasCallOut() || cudaHasCallOut()) return;
  const { slot, directory, locks, ahead, leases, seenAt, until } = idle;
  const inherited = parseInherited(process.env[INHERITED]);
  const given: number[] = [];
  const give = (descriptor: number) => {
    const duplicate = processInheritable(descriptor);
    if (duplicate >= 0) given.push(duplicate);
    return duplicate;
  };
  const queue = give(slot.descriptor);
  const needs = [process.execPath, process.argv[1] ?? '', import.meta.filename, nativeFile(KEEPER)];
  const args = [
    KEEPER,
    'wait',
    ...locks.flatMap(({ descriptor, byte }) => ['--lock', `${give(descriptor)}:${byte}`]),
    ...['--queue', `${queue}:${slot.number}`, '--queue-path', pathIn(directory.path, WAIT_QUEUE_FILE)],
    ...ahead.flatMap((number) => ['--ahead', String(number)]),
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
    ...['--', process.execPath, ...process.execArgv, ...words],
  ];
  if (given.length === 1 + locks.length + leases.length) {
    const saved = saveMessages();
    const messages = JSON.stringify(saved).length > MAX_MESSAGE_CHARACTERS ? [] : saved;
    const [name, value] = waitingVariable({ ...next, slot: { ...slot, descriptor: queue } }, keep, messages);
    setVariables({ [name]: value });
    hideExtraCertificates();
    process.emit(BEFORE_EXEC as 'exit', 0);
    const descriptors = [...inherited.descriptors, ...keep, queue];
    processExec(nativeProgram(KEEPER), args, own, descriptors, 0);
    setVariables({ [WAITING]: undefined });
    showExtraCertificates();
  }
  for (const duplicate of given) closeSync(duplicate);
}
