import { readFileSync, writeSync } from 'node:fs';
import { getSystemErrorMap } from 'node:util';
import { asError, errorCode, errorMessage } from '../errors.ts';
import { native, packageRoot } from '../native.ts';
import { readSmallFile } from './files.ts';

let host: string | undefined;

/**
 * This machine's name, as it was when it was first asked for: for everybody, so that names compare. Loading node:os would cost the
 * start of the command 0.3 ms.
 */
export function hostName(): string {
  if (host === undefined) {
    host =
      readSmallFile('/proc/sys/kernel/hostname')?.trimEnd() ?? process.getBuiltinModule('node:os').hostname();
  }
  return host;
}

let boot: string | undefined;

/** The kernel's name for this boot of the machine; '' where it can't be read. */
export function bootId(): string {
  boot ??= (readSmallFile('/proc/sys/kernel/random/boot_id') ?? '').trim();
  return boot;
}

/** Milliseconds since boot, sleep included: what the keeper stamps into records (CLOCK_BOOTTIME). */
export function bootMilliseconds(): number {
  return native().processBootMilliseconds();
}

/** Reads package.json of this installation. */
export function ownPackage(): { version: string; distribution?: string } {
  return JSON.parse(readFileSync(`${packageRoot}/package.json`, 'utf8'));
}

/** The words that start this program again, with these arguments. */
export function ownProgram(...words: readonly string[]): [program: string, ...words: string[]] {
  return [process.execPath, ...process.execArgv, ...process.argv.slice(1, 2), ...words];
}

const HINTS: Record<number, string> = {
  11: 'the limit on processes may have been reached: ulimit -u',
  12: 'memory is used up',
  22: 'the limit on open files may be too low: ulimit -n',
  24: 'the limit on open files has been reached: ulimit -n',
};

/** An errno value in words, with a hint where one helps: 'too many open files'. */
export function systemError(errno: number): string {
  const text = getSystemErrorMap().get(-errno)?.[1] ?? `system error ${errno}`;
  return HINTS[errno] === undefined ? text : `${text} (${HINTS[errno]})`;
}

/** Why something failed: an error of the system in words, else the message. */
export function errorReason(error: unknown): string {
  const { errno: number } = asError(error);
  return number === undefined ? errorMessage(error) : systemError(-number);
}

/**
 * Writes at once, past Node's streams: they would make a terminal or pipe non-blocking for everybody who shares it, the command that
 * `run` starts included. A reader that is slow is waited for.
 * @returns the error that has kept the rest from being written; null: there was none
 */
export function writeNow(descriptor: number, text: string | Uint8Array): unknown {
  const bytes = typeof text === 'string' ? Buffer.from(text) : text;
  for (let done = 0; done < bytes.length; ) {
    try {
      done += writeSync(descriptor, bytes, done);
    } catch (error) {
      if (errorCode(error) !== 'EAGAIN') return error; // another process made it non-blocking
    }
  }
  return null;
}

/** Whether the terminal shows more than ASCII, by its environment. */
export function showsUnicode(): boolean {
  const { LC_ALL, LC_CTYPE, LANG } = process.env;
  return /utf-?8/i.test(LC_ALL || LC_CTYPE || LANG || '');
}

/** Receives what a person should know but that stops nothing. */
type WarningListener = (message: string) => void;

let listener: WarningListener = (message) => process.emitWarning(message, 'GPUOwnerWarning');
/** The last message that people have been given, by subject. */
let messages = new Map<string, string>();

/** The command prints warnings its own way; the library leaves them to `process.emitWarning`. */
export function onWarning(replacement: WarningListener): void {
  listener = replacement;
}

export function warn(message: string): void {
  listener(message);
}

/** For what holds as long as the process lives. */
export function warnOnce(message: string): void {
  if (isNewMessage(message, '')) listener(message);
}

/** Whether people haven't been told just this about the subject last; from now on they have. */
export function isNewMessage(subject: string, text: string): boolean {
  if (messages.get(subject) === text) return false;
  messages.set(subject, text);
  return true;
}

/** The last message about a subject; undefined: none. */
export function lastMessage(subject: string): string | undefined {
  return messages.get(subject);
}

/** For a process that goes on in this one's place, so that it doesn't say everything again. */
export function saveMessages(): [subject: string, text: string][] {
  return [...messages];
}

export function restoreMessages(before: readonly [subject: string, text: string][]): void {
  messages = new Map([...before, ...messages]);
}
