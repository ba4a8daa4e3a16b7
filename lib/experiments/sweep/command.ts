import { closest, listWords, sanitize, showValue } from '../../platform/index.ts';
import type { TaskCommand } from '../task/index.ts';
import { mistake, type Origin } from './origin.ts';
import { fillTemplate, parseTemplate } from './placeholders.ts';
import { parseShellLine } from './shell-line.ts';
import { splitWords } from './words.ts';

/** What tasks run, with placeholders in it. */
export interface CommandTemplate {
  readonly origin: Origin;
  /** Those that occur in it. */
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
  origin: Origin,
): CommandTemplate {
  const refuse = (why: string) => mistake(origin, `the command: ${why}`);
  if (shell) {
    const text = (typeof command === 'string' ? command : command.join(' ')).trim();
    if (text === '') throw refuse('it is empty');
    const line = parseShellLine(text, refuse);
    return { origin, names: line.names, fill: (textOf) => ({ shell: line.fill(textOf) }) };
  }
  const words = typeof command === 'string' ? splitWords(command, refuse) : command;
  if (words.length === 0 || words[0] === '') throw refuse('it is empty');
  const templates = words.map((word) => parseTemplate(word, refuse));
  return {
    origin,
    names: templates.flatMap((template) => template.names),
    fill(textOf) {
      const filled = templates.map((template) => fillTemplate(template, textOf));
      if (filled[0] === '') throw refuse(`its first word, ${showValue(words[0])}, is filled in with nothing`);
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
      `${shown} isn't known before the task is in the queue; what runs finds it in the file $GPU_OWNER_TASK`,
    );
  }
  const meant = closest(name, known);
  const instead = meant
    ? `did you mean {${meant}}?`
    : `there are ${listWords(known.map((each) => `{${sanitize(each, 60)}}`))}`;
  throw refuse(`${shown} names no parameter; ${instead} (braces themselves are written {{ and }})`);
}
