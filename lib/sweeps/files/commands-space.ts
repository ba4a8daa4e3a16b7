// A part of a sweep whose tasks are the lines of a file of commands.

import { basename } from 'node:path';
import type { TaskCommand } from '../task/index.ts';
import { type CommandTemplate, mistake, splitShellWords } from './command.ts';
import { makeSpace, type Space } from './space.ts';

interface CommandsOptions {
  /** The phase's name. */
  phase: string;
  /** May have {phase} and {command} in it. undefined: the default. */
  outputDirectory: string | undefined;
  /** The command that is run instead of the lines themselves, with {command} in it. */
  template: CommandTemplate | null;
  /** Whether each line is for `sh -c`. */
  shell: boolean;
}

/**
 * A task for each line; empty ones and those that begin with # are passed over, equal lines are one task. Braces are ordinary
 * characters in them. The only parameter is `command`: the line.
 * @param path of the file, for messages
 * @throws ERR_CONFIGURATION, with file and line
 */
export function commandsSpace(text: string, path: string, options: CommandsOptions): Space {
  const { phase, outputDirectory, template, shell } = options;
  const lines = new Map<string, number>();
  let repeatedLines = 0;
  text.split('\n').forEach((each, i) => {
    const line = each.trim();
    if (line === '' || line.startsWith('#')) return;
    if (lines.has(line)) {
      repeatedLines++;
      return;
    }
    if (line.includes('\0')) throw mistake({ file: path, line: i + 1 }, 'the character U+0000 is in it');
    lines.set(line, i + 1);
  });
  const location = { file: path, line: 1 };
  if (lines.size === 0) throw mistake(location, 'there is no command in it; a task is a line');
  const commandOf = (line: string): TaskCommand =>
    shell
      ? { shell: line }
      : words(line, (why) => mistake({ file: path, line: lines.get(line) as number }, why));
  // All of them, so that a mistake in the last line is known before the first is run.
  if (template === null) for (const line of lines.keys()) commandOf(line);
  const space = makeSpace({
    name: phase,
    location,
    parameters: [{ name: 'command', distribution: { kind: 'choice', values: [...lines.keys()] } }],
    ...(outputDirectory !== undefined && {
      directory: { value: outputDirectory, location: { option: '--output-dir' } },
    }),
    command: template ?? (({ command }) => commandOf(command as string)),
  });
  return { ...space, repeatedLines };
}

/** `more/jobs.txt` -> `jobs`; `-`, standard input -> `commands`. */
export function phaseOfFile(path: string): string {
  if (path === '-') return 'commands';
  const name = basename(path).replace(/\.[^.]*$/, '');
  return (
    name
      .replace(/[^\w.+-]/g, '_')
      .replace(/^[-.]+/, '')
      .slice(0, 100) || 'commands'
  );
}

function words(line: string, refuse: (why: string) => Error): TaskCommand {
  const split = splitShellWords(line, refuse);
  if (split.length === 0 || split[0] === '') throw refuse('the command is empty');
  return { words: split };
}
