// A phase whose tasks are the lines of a file of commands.

import { basename } from 'node:path';
import type { TaskCommand, TaskSpec } from '../task/index.ts';
import {
  type CommandTemplate,
  checkPlaceholder,
  checkPlaceholders,
  fillTemplate,
  mistake,
  parseTemplate,
  splitShellWords,
} from './command.ts';
import { outputDirectory, type Phase } from './phase.ts';

interface CommandsOptions {
  /** The phase's name. */
  phase: string;
  /** May have {phase} and {command} in it. */
  outputDirectory: string;
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
export function commandsPhase(text: string, path: string, options: CommandsOptions): Phase {
  const { phase, template, shell } = options;
  const known = ['command', 'phase', 'output_dir'];
  if (template !== null) checkPlaceholders(template, known);
  const refuseDirectory = (why: string) => mistake({ option: '--output-dir' }, why);
  const directory = parseTemplate(options.outputDirectory, refuseDirectory);
  for (const name of directory.names) checkPlaceholder(name, ['command', 'phase'], refuseDirectory);

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
  if (lines.size === 0) throw mistake({ file: path, line: 1 }, 'there is no command in it; a task is a line');

  const make = (line: string, number: number): TaskSpec => {
    const textOf = (name: string) => (name === 'command' ? line : name === 'phase' ? phase : place);
    const place: string = outputDirectory(fillTemplate(directory, textOf), refuseDirectory);
    const refuse = (why: string) => mistake({ file: path, line: number }, why);
    const command = template?.fill(textOf) ?? (shell ? { shell: line } : words(line, refuse));
    return { phase, outputDirectory: place, parameters: { command: line }, command };
  };
  // All of them, so that a mistake in the last line is known before the first is run.
  if (template === null && !shell) {
    for (const [line, number] of lines) words(line, (why) => mistake({ file: path, line: number }, why));
  }
  return {
    name: phase,
    size: lines.size,
    factors: [{ name: 'command', count: lines.size }],
    repeatedLines,
    *tasks() {
      for (const [line, number] of lines) yield make(line, number);
    },
  };
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
