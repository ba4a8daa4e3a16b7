import { problem } from '../../config/index.ts';
import { GPUOwnerError } from '../../errors.ts';
import { closest, listWords, sanitize, shellWords, showValue } from '../../platform/index.ts';
import type { TaskCommand } from '../task/index.ts';

/** The place in a sweep file, or the option, where something was written. */
export type SourceLocation = { readonly file: string; readonly line: number } | { readonly option: string };

/** Makes an error that names the place: ERR_CONFIGURATION with file and line, or ERR_INVALID_ARGUMENT with the option. */
export function mistake(location: SourceLocation, text: string, cause?: unknown): GPUOwnerError {
  if ('file' in location) return problem(location.file, location.line, text, cause);
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', `${location.option}: ${text}`, { cause });
}

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

/** @param which the command, for messages @throws if it names a parameter that there isn't */
export function checkPlaceholders(
  { names, location }: CommandTemplate,
  known: readonly string[],
  which = 'the command',
): void {
  for (const name of names) checkPlaceholder(name, known, (why) => mistake(location, `${which}: ${why}`));
}

const REMEDY =
  'put it in single quotes to use it literally, or let a shell run the line (--shell; in sweep files shell: true)';

/**
 * Splits a line into words as a shell would: at blanks, with quotes and backslashes. Nothing is expanded; what a shell would
 * expand, set, or take for an operator, is refused: also file names with `*`, `?` or ranges such as `[0-9]`. Other brackets are
 * ordinary characters. A ` #` begins a comment.
 * @param refuse makes the error
 */
export function splitShellWords(line: string, refuse: (why: string) => Error): string[] {
  const variable = /^\s*[A-Za-z_]\w*\+?=/.exec(line)?.[0].trim();
  if (variable !== undefined) throw refuse(`only a shell sets a variable (${variable}); ${REMEDY}`);
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
      if (
        '|&;<>()*?'.includes(c) ||
        FILES.test(line.slice(i)) ||
        expands(line, i) ||
        /^\$['"]/.test(line.slice(i, i + 2)) ||
        (c === '~' && word === null)
      )
        throw refuse(`only a shell gives ${c} a meaning; ${REMEDY}`);
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
      if (expands(line, i))
        throw refuse(`only a shell gives ${c} a meaning, also in double quotes; ${REMEDY}`);
      inside += c;
    }
  }
  throw refuse('the quote " isn\'t closed');
}

/** At its `[`. Lists such as [1e-3,64] have none. */
const FILES = /^\[[^\]\s,'"]*(?:\d-\d|[a-z]-[a-z]|[A-Z]-[A-Z])[^\]\s,'"]*\]/;

function expands(line: string, i: number): boolean {
  return line[i] === '`' || (line[i] === '$' && /[\w({@*#?!$-]/.test(line[i + 1] ?? ''));
}

/** A text with `{names}` in it: literal text and names in turn, text first and last. */
interface Template {
  readonly literals: readonly string[];
  readonly names: readonly string[];
}

const SIGNS = /\{\{|\}\}|\{([^{}]*)\}|[{}]/g;

/**
 * `{name}` stands for a parameter, `{{` and `}}` for braces.
 * @param refuse makes the error for a brace that is neither
 */
export function parseTemplate(text: string, refuse: (why: string) => Error): Template {
  const literals: string[] = [];
  const names: string[] = [];
  let literal = '';
  let from = 0;
  for (const match of text.matchAll(SIGNS)) {
    const [sign, name] = match;
    literal += text.slice(from, match.index);
    from = match.index + sign.length;
    if (sign === '{{' || sign === '}}') literal += sign[0];
    else if (name === undefined) throw refuse(`a single ${sign}; write ${sign}${sign} for a brace`);
    else if (name === '') throw refuse('{} names no parameter; write {{}} for the braces themselves');
    else {
      literals.push(literal);
      literal = '';
      names.push(name);
    }
  }
  literals.push(literal + text.slice(from));
  return { literals, names };
}

/** @param textOf what a name stands for, as text */
export function fillTemplate({ literals, names }: Template, textOf: (name: string) => string): string {
  let text = literals[0] as string;
  for (let i = 0; i < names.length; i++) text += textOf(names[i] as string) + literals[i + 1];
  return text;
}

/** A line for `sh -c`, in which values are filled in so that no shell can take them for anything but text. */
export interface ShellLine {
  readonly names: readonly string[];
  fill(textOf: (name: string) => string): string;
}

/** Syntax within which a shell reads a quoted value anew, or as something else. */
const UNSURE = /`|\$\(|\$'|\$\{(?!\w+\})|<<|\(\(|(?:^|[\s;&|()])#/;

/** Placeholders stand outside of quotes: values are quoted. @param refuse makes the error for one in another place */
export function parseShellLine(line: string, refuse: (why: string) => Error): ShellLine {
  const template = parseTemplate(line, refuse);
  const { literals, names } = template;
  let before = '';
  for (const [place, name] of names.entries()) {
    // To a shell, the line goes on as if a backslash and the line break after it weren't there.
    before = `${before}${literals[place]}`.replace(/\\(.)/gs, (pair, escapee) =>
      escapee === '\n' ? '' : pair,
    );
    const shown = `{${sanitize(name, 60)}}`;
    const plain = before.replace(/\\[\s\S]|'[^']*'|"(?:[^"\\]|\\[\s\S])*"/g, '_');
    if (/['"]/.test(plain))
      throw refuse(`${shown} stands in quotes; end them before it, as in "a b"${shown}: values are quoted`);
    if (/[\\$]$/.test(plain))
      throw refuse(
        `${shown} after ${plain.at(-1)}: write ${shown} for the parameter, \${{...}} for a variable of the shell`,
      );
    const unsure = UNSURE.exec(before);
    if (unsure !== null)
      throw refuse(
        `${shown} can't be quoted reliably after ${unsure[0].trim()}; begin the line with VALUE=${shown}; and write "$VALUE" there`,
      );
    before += '_';
  }
  return { names, fill: (textOf) => fillTemplate(template, (name) => shellWords([textOf(name)])) };
}
