// A question as a host's login shell is given it, and what comes back between marks: shells print what their users have set up.
import type { Host } from '../config/index.ts';
import { shellWords, showValue, usageError } from '../platform/index.ts';

/** The answer of a gpu-owner on a host. */
interface RawAnswer {
  /** The first line of `--version`; null: the host didn't say. */
  version: string | null;
  exitCode: number;
  output: string;
  errors: string;
}

/** Variables that a command gets besides those of a login there. */
export type Environment = readonly (readonly [name: string, value: string])[];

/** Whether a line is a mark, and not for people. */
export function isMark(line: string): boolean {
  return /^gpu-owner-[0-9a-f]{32} /.test(line);
}

/** A script as a command line for any login shell: what it reads means the same to sh, csh and fish. */
function encode(script: readonly string[]): string {
  const encoded = Buffer.from(script.join('\n')).toString('base64');
  return `exec sh -c 'eval "$(printf %s "$1" | base64 -d)"' sh ${encoded}`;
}

/** Where logins by ssh don't find what users have installed. */
const FIND = 'PATH=$PATH:$HOME/.local/bin; export PATH';

/**
 * A script for a host's shell. The script prints marks in lines of their own: `missing` (gpu-owner isn't there) or `directory`
 * (that isn't), else `reached` before gpu-owner starts, and further ones of its kind.
 */
class MarkedScript {
  /** No program can know it. */
  readonly mark = `gpu-owner-${process.getBuiltinModule('node:crypto').randomBytes(16).toString('hex')}`;

  protected print(text: string): string {
    return `printf '\\n%s %s\\n' ${this.mark} ${text}`;
  }

  /** Where a gpu-owner is looked for, and in which directory it runs. */
  protected prologue({ command }: Host, directory: string | undefined): string[] {
    const unless = (condition: string, text: string) => `${condition} || { ${this.print(text)}; exit 0; }`;
    return [
      FIND,
      ...(command === null ? [unless('command -v gpu-owner >/dev/null 2>&1', 'missing')] : []),
      ...(directory === undefined ? [] : [unless(`cd ${shellWords([directory])} 2>/dev/null`, 'directory')]),
      this.print('reached'),
    ];
  }

  /** The first of some marks in an output, and what follows it. */
  protected find(output: string, words: string): { word: string; after: string; before: string } | null {
    const found = new RegExp(`\n${this.mark} (${words})\r?\n`).exec(output);
    if (found === null) return null;
    const end = found.index + found[0].length;
    return { word: found[1] ?? '', before: output.slice(0, found.index), after: output.slice(end) };
  }

  /** The refusal of a host; null: it has said none. */
  protected refusalIn(output: string): 'missing' | 'directory' | null {
    const word = this.find(output, 'missing|directory')?.word;
    return word === 'missing' || word === 'directory' ? word : null;
  }
}

/** A question, and its answer between marks. */
export class RemoteRequest extends MarkedScript {
  /**
   * @param words the arguments of gpu-owner
   * @param directory where it runs: an absolute path
   * @param hasInput whether {@link input} is on its standard input: other users can see command lines
   */
  commandLine(host: Host, words: readonly string[], directory?: string, hasInput = false): string {
    return encode([
      // Less than all of it would be another environment.
      ...(hasInput ? ['settings=$(cat)', `case $settings in *"# ${this.mark}") ;; *) exit 0;; esac`] : []),
      'exec </dev/null',
      'GPU_OWNER_ERRORS=json; export GPU_OWNER_ERRORS',
      ...this.prologue(host, directory),
      ...(hasInput ? ['eval "$settings"', 'unset settings'] : []),
      `ask() { ${host.command ?? 'gpu-owner'} "$@"; }`,
      'ask --version 2>/dev/null',
      `${this.print('begin')}; ${this.print('begin')} >&2`,
      `ask ${shellWords(words)}`,
      `${this.print('"end $?"')}; ${this.print('end')} >&2`,
    ]);
  }

  /** Environment variables of the command, for its standard input. */
  input(environment: Environment): string {
    return [
      ...environment.map(([name, value]) => `export ${name}=${shellWords([value])}`),
      `# ${this.mark}`,
      '',
    ].join('\n');
  }

  /** Whether all of an answer is there, by its last characters. */
  isWhole(output: string, errors: string): boolean {
    const ends = (text: string, word: string) => text.includes(`${this.mark} ${word}`);
    return (
      ends(output, 'missing') || ends(output, 'directory') || (ends(output, 'end') && ends(errors, 'end'))
    );
  }

  /** The version that a host has told, null if it hasn't; undefined: these lines don't go as far as the answer. */
  versionIn(lines: readonly string[]): string | null | undefined {
    const begin = lines.indexOf(`${this.mark} begin`);
    if (begin < 0) return undefined;
    const answers = lines.slice(lines.indexOf(`${this.mark} reached`) + 1, begin);
    return answers[0]?.trim() || null;
  }

  /** null: gpu-owner has not answered; 'missing': it isn't there; 'directory': nor is that; 'broken': it began to. */
  read(output: string, errors: string): RawAnswer | 'missing' | 'directory' | 'broken' | null {
    const refusal = this.refusalIn(output);
    if (refusal !== null) return refusal;
    const reached = this.find(output, 'reached');
    if (reached === null) return output.includes(`${this.mark} reached`) ? 'broken' : null;
    const begun = this.find(reached.after, 'begin');
    const ended = begun === null ? null : this.find(`\n${begun.after}`, 'end \\d{1,3}');
    if (begun === null || ended === null) return 'broken';
    const begunErrors = this.find(errors, 'begin');
    const endedErrors = begunErrors === null ? null : this.find(`\n${begunErrors.after}`, 'end');
    return {
      version: begun.before.trim().split('\n')[0] || null,
      exitCode: Number(ended.word.slice('end '.length)),
      output: ended.before.slice(1),
      errors: endedErrors?.before.slice(1) ?? errors,
    };
  }
}

/** A command of gpu-owner that a host runs, and what comes before its output. */
export class RemoteStart extends MarkedScript {
  #before = '';
  #found: string | null = null;

  commandLine(
    host: Host,
    { words, directory, settings }: { words: readonly string[]; directory: string; settings: string | null },
  ): string {
    const file = shellWords([settings ?? '']);
    const [name = '', ...rest] = words;
    return encode([
      ...this.prologue(host, directory),
      ...(settings === null ? [] : [`eval "$(cat ${file})"; rm -f -- ${file}`]),
      this.print('begin'),
      startOf(host.command, shellWords([name, '--over-ssh', ...rest])),
    ]);
  }

  /** Whether the output is that of the command by now. */
  get isOver(): boolean {
    return this.#found === 'begin';
  }

  /** Shells have printed it before the command began. */
  get withheld(): string {
    return this.#before;
  }

  /** @returns the part of the output that is to be shown */
  read(bytes: Buffer): Buffer {
    if (this.isOver) return bytes;
    // Latin-1 keeps each byte as it is.
    this.#before = (this.#before + bytes.toString('latin1')).slice(-MAX_BEFORE);
    const found = this.find(this.#before, 'begin|missing|directory');
    if (found === null) return Buffer.alloc(0);
    this.#found = found.word;
    return Buffer.from(found.after, 'latin1');
  }

  /** 'missing': gpu-owner isn't there; 'directory': that isn't; null: the host hasn't said. */
  get missing(): 'missing' | 'directory' | null {
    return this.#found === 'missing' || this.#found === 'directory' ? this.#found : null;
  }
}

/** A gpu-owner that speaks with this process, line by line, after the mark `begin`. */
export class RemoteProgram extends MarkedScript {
  commandLine({ name, command }: Host, words: readonly string[], directory: string): string {
    return encode([
      'GPU_OWNER_ERRORS=json; export GPU_OWNER_ERRORS',
      ...this.prologue({ name, command }, directory),
      this.print('begin'),
      startOf(command, shellWords(words)),
    ]);
  }

  /** The word of a line that is a mark; null: it is none. */
  wordIn(line: string): string | null {
    return line.startsWith(`${this.mark} `) ? line.slice(this.mark.length + 1).trimEnd() : null;
  }
}

/** A part of a file, after a mark. */
export class FilePart extends MarkedScript {
  #before: Buffer | null = Buffer.alloc(0);

  /** @param from the first byte, from 0 @param length how many bytes; null: to the end @param follows goes on as the file grows */
  commandLine(path: string, from: number, length: number | null, follows: boolean): string {
    const tail = `tail -c +${from + 1} ${follows ? '-f ' : ''}-- ${shellWords([path])}`;
    return encode([
      'exec </dev/null',
      this.print('begin'),
      length === null ? `exec ${tail}` : `${tail} | head -c ${length}`,
    ]);
  }

  /** @returns the bytes of the file in a piece of the output */
  read(piece: Buffer): Buffer {
    if (this.#before === null) return piece;
    const all = Buffer.concat([this.#before, piece]);
    const begin = `\n${this.mark} begin\n`;
    const at = all.indexOf(begin);
    this.#before = at < 0 ? all.subarray(-MAX_BEFORE) : null;
    return at < 0 ? Buffer.alloc(0) : all.subarray(at + begin.length);
  }

  /** Whether the host has come as far as the file. */
  get hasBegun(): boolean {
    return this.#before === null;
  }
}

/** Starts gpu-owner in place of the shell: the parent of gpu-owner is sshd then, which ends with the connection. */
function startOf(command: string | null, words: string): string {
  const isSimple = command === null || !/[;&|<>()`'"\\#]/.test(command);
  return isSimple ? `exec env ${command ?? 'gpu-owner'} ${words}` : `${command} ${words}`;
}

const MAX_BEFORE = 1024 * 1024;

/** Variables of a login that are those of the host, whatever a pattern says. */
const LOGIN =
  /^(?:PATH|HOME|PWD|OLDPWD|SHELL|SHLVL|USER|LOGNAME|MAIL|TERM|TMPDIR|DISPLAY|_|(?:SSH|XDG|GPU_OWNER|DBUS)_.*)$/;

/** The variables that `--env` names. @throws ERR_INVALID_ARGUMENT */
export function environmentFor(given: readonly string[]): Environment {
  return given.flatMap((entry): [string, string][] => {
    const [, name = '', , value] = /^([A-Za-z_][A-Za-z0-9_]*)(=([\s\S]*))?$/.exec(entry) ?? [];
    if (name !== '') {
      const found = value ?? process.env[name];
      if (found === undefined)
        throw usageError(`--env ${name}: the variable is not set here; write --env ${name}=VALUE`);
      if (found.includes('\ufffd'))
        throw usageError(`--env ${name}: its value is not UTF-8, and would get lost on the way`);
      return [[name, found]];
    }
    if (!/^[A-Za-z0-9_*?]+$/.test(entry))
      throw usageError(
        `--env: ${showValue(entry)} is neither NAME, NAME=VALUE nor a pattern such as 'WANDB_*'`,
      );
    const pattern = new RegExp(`^${entry.replaceAll('*', '.*').replaceAll('?', '.')}$`);
    return Object.entries(process.env).flatMap(([each, text]): [string, string][] =>
      /^[A-Za-z_][A-Za-z0-9_]*$/.test(each) && pattern.test(each) && !LOGIN.test(each)
        ? [[each, text ?? '']]
        : [],
    );
  });
}
