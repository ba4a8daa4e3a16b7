// Whether a command can be started at all: asked before anything waits for GPUs, as a shell would find out.
import { accessSync, closeSync, constants, openSync, readdirSync, readSync } from 'node:fs';
import { basename, dirname, extname, resolve } from 'node:path';
import { simulatedVariables } from '../config/index.ts';
import { ifPossible } from '../errors.ts';
import { closest, sanitize, shellWords, showValue, statusAt } from '../platform/index.ts';

/** Why a command can't be started, and what to write in place of it. */
interface CommandProblem {
  /** That of a shell. */
  exitCode: 126 | 127;
  message: string;
}

/** @param directory where it would run @returns null: nothing is known to be wrong */
export function commandProblem(command: readonly string[], directory = '.'): CommandProblem | null {
  const [program = ''] = command;
  const isPath = program.includes('/');
  const paths = pathsOf(program, directory);
  const found = program === '' ? [] : paths.filter(isFile);
  const programs = found.filter(isExecutable);
  const missing = programs.map((path) => missingInterpreter(path, directory));
  if (missing.includes(null)) return null;
  const problem = (exitCode: 126 | 127, why: string): CommandProblem => ({
    exitCode,
    message: `cannot run ${showValue(program)}: ${why}`,
  });
  const [file] = found;
  const [script] = programs;
  const [why] = missing;
  if (script !== undefined && why != null) {
    if (why.endsWith('\r'))
      return problem(
        127,
        `its first line ends as in Windows (CR LF); write: ${line(['sed', '-i', 's/\\r$//', script])}`,
      );
    const interpreter = INTERPRETERS[extname(script)];
    const remedy =
      interpreter === undefined ? 'correct this line' : `write: ${line([interpreter, ...command])}`;
    return problem(127, `${showValue(why)} in its first line was not found; ${remedy}`);
  }
  const instead = commandInstead(command, directory);
  if (file !== undefined) {
    const remedy = instead === null ? '' : `, or write: ${line(instead)}`;
    return problem(126, `not executable (permission denied); make it so (chmod +x)${remedy}`);
  }
  if (isPath && isDirectory(paths[0] as string)) return problem(126, 'it is a directory');
  const remedy = remedyFor(command, directory);
  return problem(127, `not found${isPath ? '' : ' in PATH'}${remedy === null ? '' : `; ${remedy}`}`);
}

const INTERPRETERS: Record<string, string> = {
  '.py': 'python3',
  '.sh': 'bash',
  '.R': 'Rscript',
  '.jl': 'julia',
};

/** A kernel reads no more of the first line. */
const MAX_FIRST_LINE_BYTES = 256;

/**
 * The interpreter that a script's first line names, if it isn't there; null: nothing is missing. With `env`, that is the program that
 * env looks for.
 */
function missingInterpreter(path: string, directory: string): string | null {
  const words = firstLine(path)?.split(/[ \t]+/) ?? [];
  const [interpreter = ''] = words;
  if (interpreter === '') return null;
  if (!isFile(resolve(directory, interpreter))) return interpreter;
  if (basename(interpreter) !== 'env') return null;
  const program = words.slice(1).find((word) => !word.startsWith('-') && !word.includes('='));
  // Options of env may have values.
  if (program === undefined || /^-(?!S$|-split-string$)/.test(words[1] ?? '')) return null;
  return isThere(program, directory) ? null : program;
}

/** The text after `#!`; null: none, or unreadable for this user. */
function firstLine(path: string): string | null {
  const text = beginningOf(path, MAX_FIRST_LINE_BYTES) ?? '';
  return /^#![ \t]*([^\n]*)/.exec(text)?.[1]?.replace(/[ \t]+$/, '') ?? null;
}

/** The first bytes of a file, as Latin-1; null: this user may not read it. */
function beginningOf(path: string, bytes: number): string | null {
  return ifPossible(() => {
    const file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      const buffer = Buffer.alloc(bytes);
      return buffer.toString('latin1', 0, readSync(file, buffer, 0, bytes, 0));
    } finally {
      closeSync(file);
    }
  }, null);
}

const BUILTINS = new Set(
  '. [[ alias case cd declare eval exec export for function if let set shopt source time ulimit umask unset until while'.split(
    ' ',
  ),
);

function remedyFor(command: readonly string[], directory: string): string | null {
  const [program = '', ...rest] = command;
  const [first = '', ...words] = program.trim().split(/\s+/);
  if (BUILTINS.has(first) || (words.length > 0 && /[|&;<>$`]/.test(program))) {
    const script = words.length > 0 ? program : command.join(' ');
    return `only a shell understands it; write: ${line(['bash', '-c', script])}`;
  }
  if (words.length > 0 && commandProblem([first], directory) === null)
    return `it is one word because of the quotes; write: ${sanitize([program, ...rest].join(' '), 200)}`;
  const instead = commandInstead(command, directory);
  if (instead !== null) return `write: ${line(instead)}`;
  const isPath = program.includes('/');
  const names = isPath ? namesIn(resolve(directory, dirname(program))) : searchPath().flatMap(namesIn);
  const name = closest(basename(program), names);
  return name === null ? null : `did you mean ${showValue(isPath ? `${dirname(program)}/${name}` : name)}?`;
}

/**
 * The command that was meant by one that can't be started: a script is given to its interpreter, and where there is no `python`, there may
 * be a `python3`. null: unknown
 */
function commandInstead(command: readonly string[], directory: string): string[] | null {
  const [program = '', ...rest] = command;
  if (program === '') return null;
  if (isFile(resolve(directory, program))) {
    const interpreter = INTERPRETERS[extname(program)];
    if (interpreter !== undefined) return [interpreter, ...command];
    return program.includes('/') ? null : [`./${program}`, ...rest];
  }
  return !program.includes('/') && isThere(`${program}3`, directory) ? [`${program}3`, ...rest] : null;
}

/** A command line to copy. */
function line(words: readonly string[]): string {
  return sanitize(shellWords(words), 200);
}

function searchPath(): string[] {
  const { PATH = process.env.PATH } = simulatedVariables({ PATH: process.env.PATH });
  return (PATH || '/usr/local/bin:/usr/bin:/bin').split(':').map((each) => each || '.');
}

function pathsOf(program: string, directory: string): string[] {
  const places = program.includes('/') ? ['.'] : searchPath();
  return places.map((each) => resolve(directory, each, program));
}

function isThere(program: string, directory: string): boolean {
  return pathsOf(program, directory).some((path) => isFile(path) && isExecutable(path));
}

function namesIn(directory: string): string[] {
  return ifPossible(() => readdirSync(directory), []);
}

function isFile(path: string): boolean {
  return statusAt(path)?.kind === 'file';
}

function isDirectory(path: string): boolean {
  return statusAt(path)?.kind === 'directory';
}

function isExecutable(path: string): boolean {
  return ifPossible(() => {
    accessSync(path, constants.X_OK);
    return true;
  }, false);
}
