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
export function encode(script: readonly string[]): string {
  const encoded = Buffer.from(script.join('\n')).toString('base64');
  return `exec sh -c 'eval "$(printf %s "$1" | base64 -d)"' sh ${encoded}`;
}

/** Where logins by ssh don't find what users have installed. */
export const FIND = 'PATH=$PATH:$HOME/.local/bin; export PATH';
export const HAS_PROGRAM = 'command -v gpu-owner >/dev/null 2>&1';
export const enter = (directory: string) => `cd ${shellWords([directory])} 2>/dev/null`;

/** Keeps the settings in a file, and prints its path. One that is still there after ten minutes has no reader any more. */
const KEEP = `keep() {
umask 077; place=\${XDG_STATE_HOME:-$HOME/.local/state}/gpu-owner/environments
mkdir -p "$place" && find "$place" -type f -mmin +10 -exec rm -f {} + &&
file=$(mktemp "$place/XXXXXXXXXX") && printf '%s\\n' "$settings" >"$file" && printf '%s\\n' "$file"; }`;

/** No program can know it. */
const newMark = () => `gpu-owner-${process.getBuiltinModule('node:crypto').randomBytes(16).toString('hex')}`;

/** Prints a mark in a line of its own. */
const printMark = (mark: string, text: string) => `printf '\\n%s %s\\n' ${mark} ${text}`;

/**
 * A question, and its answer between marks: `missing` (gpu-owner isn't there) or `directory` (that isn't), else `reached` before gpu-owner
 * starts, `begin` before its answer, and `end` with its exit code.
 */
export class RemoteRequest {
  readonly #mark = newMark();

  /**
   * @param words the arguments of gpu-owner; null: the settings are kept for a command that comes next
   * @param directory where it runs: an absolute path
   * @param input `settings`: {@link input} is on standard input, as other users can see command lines; `open`: gpu-owner reads it
   */
  commandLine(
    host: Host,
    words: readonly string[] | null,
    directory?: string,
    input: 'settings' | 'open' | null = null,
  ): string {
    const print = (text: string) => printMark(this.#mark, text);
    const unless = (condition: string, text: string) => `${condition} || { ${print(text)}; exit 0; }`;
    const hasSettings = input === 'settings';
    return encode([
      // Less than all of it would be another environment.
      ...(hasSettings
        ? ['settings=$(cat)', `case $settings in *"# ${this.#mark}") ;; *) exit 0;; esac`]
        : []),
      ...(input === 'open' ? [] : ['exec </dev/null']),
      'GPU_OWNER_ERRORS=json; export GPU_OWNER_ERRORS',
      FIND,
      ...(host.command === null ? [unless(HAS_PROGRAM, 'missing')] : []),
      ...(directory === undefined ? [] : [unless(enter(directory), 'directory')]),
      print('reached'),
      ...(hasSettings && words !== null ? ['eval "$settings"', 'unset settings'] : []),
      `ask() { ${host.command ?? 'gpu-owner'} "$@"; }`,
      'ask --version 2>/dev/null </dev/null',
      ...(words === null ? [KEEP] : []),
      `${print('begin')}; ${print('begin')} >&2`,
      words === null ? 'keep' : `ask ${shellWords(words)}`,
      `${print('"end $?"')}; ${print('end')} >&2`,
    ]);
  }

  /** Environment variables of the command, for its standard input. */
  input(environment: Environment): string {
    return [
      ...environment.map(([name, value]) => `export ${name}=${shellWords([value])}`),
      `# ${this.#mark}`,
      '',
    ].join('\n');
  }

  /** Whether all of an answer is there, by its last characters. */
  isWhole(output: string, errors: string): boolean {
    const ends = (text: string, word: string) => text.includes(`${this.#mark} ${word}`);
    return (
      ends(output, 'missing') || ends(output, 'directory') || (ends(output, 'end') && ends(errors, 'end'))
    );
  }

  /** Whether a line is one of its marks. */
  isMark(line: string): boolean {
    return line.startsWith(this.#mark);
  }

  /** The version that a host has told, null if it hasn't; undefined: these lines don't go as far as the answer. */
  versionIn(lines: readonly string[]): string | null | undefined {
    const begin = lines.indexOf(`${this.#mark} begin`);
    if (begin < 0) return undefined;
    const answers = lines.slice(lines.indexOf(`${this.#mark} reached`) + 1, begin);
    return answers[0]?.trim() || null;
  }

  /** null: gpu-owner has not answered; 'missing': it isn't there; 'directory': nor is that; 'broken': it began to. */
  read(output: string, errors: string): RawAnswer | 'missing' | 'directory' | 'broken' | null {
    const refusal = this.#find(output, 'missing|directory')?.word;
    if (refusal === 'missing' || refusal === 'directory') return refusal;
    const reached = this.#find(output, 'reached');
    if (reached === null) return output.includes(`${this.#mark} reached`) ? 'broken' : null;
    const begun = this.#find(reached.after, 'begin');
    const ended = begun === null ? null : this.#find(`\n${begun.after}`, 'end \\d{1,3}');
    if (begun === null || ended === null) return 'broken';
    const begunErrors = this.#find(errors, 'begin');
    const endedErrors = begunErrors === null ? null : this.#find(`\n${begunErrors.after}`, 'end');
    return {
      version: begun.before.trim().split('\n')[0] || null,
      exitCode: Number(ended.word.slice('end '.length)),
      output: ended.before.slice(1),
      errors: endedErrors?.before.slice(1) ?? errors,
    };
  }

  /** The first of some marks in an output, and what follows it. */
  #find(output: string, words: string): { word: string; after: string; before: string } | null {
    const found = new RegExp(`\n${this.#mark} (${words})\r?\n`).exec(output);
    if (found === null) return null;
    const end = found.index + found[0].length;
    return { word: found[1] ?? '', before: output.slice(0, found.index), after: output.slice(end) };
  }
}

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
