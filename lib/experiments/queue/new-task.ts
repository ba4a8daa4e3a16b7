import { GPUOwnerError } from '../../errors.ts';
import { listWords, sanitize } from '../../platform/index.ts';
import { formatValue, Literal, type TaskCommand, type Value } from '../task/index.ts';
import { readCommand } from './records.ts';

/** Limits that keep a name with a suffix short enough for a file. */
const MAX_PHASE_BYTES = 120;
const MAX_SEED_BYTES = 60;

/** Characters that are unsafe in the name of a file or on a terminal. */
const UNSAFE = /[/\\\p{Cc}\p{Cf}\p{Cs}\p{Z}]+/gu;

/** A phase as it stands in names. Phases that become equal share a counter. */
export function phaseInName(phase: string): string {
  const safe = shorten(phase.replace(UNSAFE, '_'), MAX_PHASE_BYTES) || '_';
  // Neither hidden nor an option.
  return /^[.-]/.test(safe) ? `_${safe}` : safe;
}

/** A task's name: `exp1_vary_width_0_42`. @param phase from `phaseInName` @param seed null: none */
export function taskName(phase: string, counter: number, seed: Value): string {
  if (seed === null || (seed instanceof Literal && seed.data === null)) return `${phase}_${counter}`;
  return `${phase}_${counter}_${shorten(formatValue(seed).replace(UNSAFE, '_'), MAX_SEED_BYTES)}`;
}

function shorten(text: string, bytes: number): string {
  if (Buffer.byteLength(text) <= bytes) return text;
  let result = '';
  let size = 0;
  for (const character of text) {
    size += Buffer.byteLength(character);
    if (size > bytes) break;
    result += character;
  }
  return result;
}

/** How many conflicting tasks an error names. */
export const MAX_NAMED = 3;

/** A command as text: equal commands have equal texts. */
export function commandText(command: TaskCommand): string {
  return JSON.stringify('shell' in command ? { shell: command.shell } : { words: command.words });
}

/** The command of a task that came without one, for workers that know themselves what to run. */
export const NO_COMMAND_TEXT = commandText({ words: [] });

/** Describes a task with two commands. */
export function conflict(name: string, known: string, other: string): string {
  return `${name}: ${inWords(known)} and ${inWords(other)}`;
}

/** @param conflicts the first of them @param count how many there are */
export function conflictError(conflicts: readonly string[], count: number): GPUOwnerError {
  const more = count - conflicts.length;
  const list = listWords([...conflicts, ...(more > 0 ? [`${more} more`] : [])]);
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `equal parameters, different commands: ${list}. A task is its parameters: make them differ, or give the known tasks ` +
      'the new command (--replace-commands).',
  );
}

/** Whether a text is one that {@link commandText} makes. */
export function isCommand(text: string): boolean {
  return commandOf(text) !== null;
}

function inWords(text: string): string {
  const command = commandOf(text);
  if (command === null) return 'a damaged command';
  return `'${sanitize('shell' in command ? command.shell : command.words.join(' '), 120)}'`;
}

function commandOf(text: string): TaskCommand | null {
  try {
    return readCommand(text) ?? null;
  } catch {
    return null;
  }
}
