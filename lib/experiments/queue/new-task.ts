import { show, type Value, Written, type TaskCommand } from '../task/index.ts';
import { GPUOwnerError } from '../../errors.ts';
import { listWords, sanitize } from '../../platform/index.ts';
import { readCommand } from './records.ts';

/** In bytes, so that a name with a suffix is still good for a file. */
const LONGEST_PHASE = 120;
const LONGEST_SEED = 60;

/** What has no place in a file's name, or plays tricks on terminals. */
const UNSAFE = /[/\\\p{Cc}\p{Cf}\p{Cs}\p{Z}]+/gu;

/** A phase as it stands in names. Phases that look alike there are counted together. */
export function phaseInName(phase: string): string {
  const safe = shorten(phase.replace(UNSAFE, '_'), LONGEST_PHASE) || '_';
  // Neither hidden nor an option.
  return /^[.-]/.test(safe) ? `_${safe}` : safe;
}

/** `exp1_vary_width_0_42`. @param phase as `phaseInName` has it @param seed null: none */
export function taskName(phase: string, counter: number, seed: Value): string {
  if (seed === null || (seed instanceof Written && seed.data === null)) return `${phase}_${counter}`;
  return `${phase}_${counter}_${shorten(show(seed).replace(UNSAFE, '_'), LONGEST_SEED)}`;
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
export const NAMED = 3;

/** The same text for the same command. */
export function commandText(command: TaskCommand): string {
  return JSON.stringify('shell' in command ? { shell: command.shell } : { words: command.words });
}

/** Of a task that came without one, for workers that know themselves what to run. */
export const NO_COMMAND_TEXT = commandText({ words: [] });

/** One task with two commands, as `commandText` has them. */
export function conflict(name: string, known: string, other: string): string {
  return `${name}: ${inWords(known)} and ${inWords(other)}`;
}

/** @param conflicts the first of them @param count how many there are */
export function conflicting(conflicts: readonly string[], count: number): GPUOwnerError {
  const more = count - conflicts.length;
  const list = listWords([...conflicts, ...(more > 0 ? [`${more} more`] : [])]);
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `equal parameters, different commands: ${list}. A task is its parameters: make them differ, or give the known tasks ` +
      'the new command (--replace-commands).',
  );
}

/** Whether it is what {@link commandText} makes. */
export function isCommand(text: string): boolean {
  return commandOf(text) !== null;
}

function inWords(text: string): string {
  const command = commandOf(text);
  if (command === null) return 'what is damaged';
  return `'${sanitize('shell' in command ? command.shell : command.words.join(' '), 120)}'`;
}

function commandOf(text: string): TaskCommand | null {
  try {
    return readCommand(text) ?? null;
  } catch {
    return null;
  }
}
