import { closest, listWords, sanitize, showValue } from '../../platform/index.ts';
import type { TaskCommand } from '../task/index.ts';
import { fillTemplate, parseShellLine, parseTemplate } from './placeholders.ts';
import { mistake, type SourceLocation } from './source-location.ts';

/** The command of tasks, with placeholders in it. */
export interface CommandTemplate {
  readonly location: SourceLocation;
  /** The placeholders that occur in it. */
  readonly names: readonly string[];
  fill(textOf: (name: string) => string): TaskCommand;
}

/**
 * @param command a line, or words. A line is split into words before placeholders are filled in: a value is never taken apart.
 * @param shell whether it is for `sh -c`, words joined by blanks; values are quoted for the shell
 * @throws for an empty command, and quotes or braces that aren't closed
 */
export function commandTemplate(
  command: string | readonly string[],
  shell: boolean,
  location: SourceLocation,
): CommandTemplate {
  const refuse = (why: string) => mistake(location, `the command: ${why}`);
  if (shell) {
    const text = (typeof command === 'string' ? command : command.join(' ')).trim();
    if (text === '') throw refuse('it is empty');
    const line = parseShellLine(text, refuse);
    return { location, names: line.names, fill: (textOf) => ({ shell: line.fill(textOf) }) };
  }
  const words = typeof command === 'string' ? splitShellWords(command, refuse) : command;
  if (words.length === 0 || words[0] === '') throw refuse('it is empty');
  const templates = words.map((word) => parseTemplate(word, refuse));
  return {
    location,
    names: templates.flatMap((template) => template.names),
    fill(textOf) {
      const filled = templates.map((template) => fillTemplate(template, textOf));
      if (filled[0] === '')
        throw refuse(`its first word, ${showValue(words[0])}, becomes empty when parameters are filled in`);
      return { words: filled };
    },
  };
}

/** @throws if there is no such parameter */
export function checkPlaceholder(
  name: string,
  known: readonly string[],
  refuse: (why: string) => Error,
): void {
  if (known.includes(name)) return;
  const shown = `{${sanitize(name, 60)}}`;
  if (name === 'task_id') {
    throw refuse(
      `${shown} isn't known before the task is in the queue; the command finds it in the file $GPU_OWNER_TASK`,
    );
  }
  const meant = closest(name, known);
  const instead = meant
    ? `did you mean {${meant}}?`
    : `the known ones are ${listWords(known.map((each) => `{${sanitize(each, 60)}}`))}`;
  throw refuse(`${shown} names no parameter; ${instead} (braces themselves are written {{ and }})`);
}

/** Operators of a shell. Whoever reads them expects a shell to act on them. */
const OPERATORS = '|&;<>()';
const REMEDY =
  'put it in single quotes to use it literally, or let a shell run the line (--shell; in sweep files shell: true)';

/**
 * Splits a line into words as a shell would: at blanks, with quotes and backslashes. Nothing is expanded; what a shell would
 * expand, or take for an operator, is refused. `*`, `?` and `[` are ordinary characters, as they are for a shell that finds no
 * such file. A ` #` begins a comment.
 * @param refuse makes the error
 */
export function splitShellWords(line: string, refuse: (why: string) => Error): string[] {
  const words: string[] = [];
  let word: string | null = null; // null: between words
  for (let i = 0; i < line.length; i++) {
    const c = line[i] as string;
    if (c === ' ' || c === '\t' || c === '\r') {
      if (word !== null) words.push(word);
      word = null;
    } else if (c === '#' && word === null) {
      const end = line.indexOf('\n', i);
      i = (end < 0 ? line.length : end) - 1;
    } else if (c === '\n') {
      if (line.slice(i).trim() === '') break;
      throw refuse('a second line begins; a command is one line, continued by a \\ before the line break');
    } else if (c === "'") {
      const end = line.indexOf("'", i + 1);
      if (end < 0) throw refuse(`the quote ' isn't closed`);
      word = (word ?? '') + line.slice(i + 1, end);
      i = end;
    } else if (c === '"') {
      const [inside, end] = doubleQuoted(line, i + 1, refuse);
      word = (word ?? '') + inside;
      i = end;
    } else if (c === '\\') {
      const next = line[++i];
      if (next === undefined) throw refuse('it ends in a backslash');
      if (next !== '\n') word = (word ?? '') + next;
    } else {
      if (OPERATORS.includes(c)) throw refuse(`${c} only has a meaning in a shell; ${REMEDY}`);
      if (expands(line, i) || /^\$['"]/.test(line.slice(i, i + 2)) || (c === '~' && word === null)) {
        throw refuse(`only a shell expands ${c}; ${REMEDY}`);
      }
      word = (word ?? '') + c;
    }
  }
  if (word !== null) words.push(word);
  return words;
}

/** @returns the text, and where the closing quote is */
function doubleQuoted(line: string, from: number, refuse: (why: string) => Error): [string, number] {
  let inside = '';
  for (let i = from; i < line.length; i++) {
    const c = line[i] as string;
    if (c === '"') return [inside, i];
    if (c === '\\' && /[$`"\\\n]/.test(line[i + 1] ?? '')) {
      i++;
      if (line[i] !== '\n') inside += line[i];
    } else {
      if (expands(line, i)) throw refuse(`only a shell expands ${c}, also in double quotes; ${REMEDY}`);
      inside += c;
    }
  }
  throw refuse('the quote " isn\'t closed');
}

function expands(line: string, i: number): boolean {
  return line[i] === '`' || (line[i] === '$' && /[\w({@*#?!$-]/.test(line[i + 1] ?? ''));
}
