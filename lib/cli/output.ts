import { fstatSync } from 'node:fs';
import { errorCode, ifPossible } from '../errors.ts';
import { nativeOrNull } from '../native.ts';
import { errorReason, writeNow } from '../platform/index.ts';

/** As in sysexits.h. */
const EX_IOERR = 74;

export function print(text: string, ifLost?: () => void): void {
  write(1, `${text}\n`, 0, ifLost);
}

/** Prints a text for people, or a value as JSON. */
export function show(shown: unknown): void {
  print(typeof shown === 'string' ? shown : JSON.stringify(shown, null, 2));
}

/** A message of ours, recognisable among a command's output. */
export function say(text: string): void {
  write(2, `gpu-owner: ${text}\n`);
}

/**
 * @param ifClosed the exit code if its reader has closed standard output
 * @param ifLost called before this process ends because of standard output; a reader that is gone is a failure then, too
 */
export function write(
  descriptor: number,
  text: string | Uint8Array,
  ifClosed = 0,
  ifLost?: () => void,
): void {
  const error = writeNow(descriptor, text);
  // No message can be printed, and a command that waits for its GPUs shall run all the same.
  if (error === null || descriptor === 2) return;
  if (errorCode(error) === 'EPIPE' && ifLost === undefined) process.exit(ifClosed); // the reader has seen enough (head)
  say(`standard output can't be written: ${errorReason(error)}`);
  ifLost?.();
  process.exit(EX_IOERR);
}

/** Lines of a table whose columns are as wide as their widest cell. @param isNumber whether a column is aligned to the right */
export function alignColumns(
  rows: readonly (readonly string[])[],
  isNumber: (column: number) => boolean = () => false,
): string[] {
  const widths = (rows[0] ?? []).map((_, at) => Math.max(...rows.map((row) => row[at]?.length ?? 0)));
  const fill = (cell: string, at: number) =>
    isNumber(at) ? cell.padStart(widths[at] ?? 0) : cell.padEnd(widths[at] ?? 0);
  return rows.map((row) => row.map(fill).join('  ').trimEnd());
}

/** Where the addon can be loaded it is asked: loading node:tty costs 6 ms, and even /dev/null is a character device. */
export function isTerminal(descriptor: number): boolean {
  if (!ifPossible(() => fstatSync(descriptor).isCharacterDevice(), false)) return false;
  return (
    nativeOrNull()?.processIsTerminal(descriptor) ?? process.getBuiltinModule('node:tty').isatty(descriptor)
  );
}

/**
 * The columns of a page on standard output: those of its terminal; without one, those of COLUMNS, or the default. Node's streams know
 * them only after node:tty was loaded.
 */
export function pageWidth(otherwise = 80): number {
  const terminal = isTerminal(1) ? (nativeOrNull()?.processColumns(1) ?? process.stdout.columns) : 0;
  return terminal || Number(process.env.COLUMNS) || otherwise;
}

/** Whether a page on standard output has colours. */
export function hasColour(): boolean {
  return isTerminal(1) && !process.env.NO_COLOR && process.env.TERM !== 'dumb';
}
