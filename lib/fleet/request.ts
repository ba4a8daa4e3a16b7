// A question as a host's login shell is given it, and what comes back between marks: shells print what their users have set up.
import type { Host } from '../config/index.ts';
import { shellWords } from '../platform/index.ts';

/** The answer of a gpu-owner on a host. */
interface RawAnswer {
  /** The first line of `--version`; null: the host didn't say. */
  version: string | null;
  exitCode: number;
  output: string;
  errors: string;
}

/** A word that no program can know. */
function newMark(): string {
  const { randomBytes } = process.getBuiltinModule('node:crypto');
  return `gpu-owner-${randomBytes(16).toString('hex')}`;
}

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

export class RemoteRequest {
  readonly #mark = newMark();

  /**
   * @param words the arguments of gpu-owner
   * @param directory where it runs: an absolute path
   */
  commandLine({ command }: Host, words: readonly string[], directory?: string): string {
    const mark = (text: string) => printMark(this.#mark, text);
    return encode([
      'exec </dev/null',
      FIND,
      'GPU_OWNER_ERRORS=json; export GPU_OWNER_ERRORS',
      ...(command === null ? [searchFor(mark('missing'))] : []),
      ...(directory === undefined ? [] : [enter(directory, mark('directory'))]),
      `ask() { ${command ?? 'gpu-owner'} "$@"; }`,
      mark('version'),
      'ask --version 2>/dev/null',
      `${mark('begin')}; ${mark('begin')} >&2`,
      `ask ${shellWords(words)}`,
      `${mark('"end $?"')}; ${mark('end')} >&2`,
    ]);
  }

  /** Whether all of an answer is there, by its last characters. */
  isWhole(output: string, errors: string): boolean {
    const ends = (text: string, word: string) => text.includes(`${this.#mark} ${word}`);
    return (
      ends(output, 'missing') || ends(output, 'directory') || (ends(output, 'end') && ends(errors, 'end'))
    );
  }

  /** The version that a host has told, null if it hasn't; undefined: these lines don't go as far as the answer. */
  versionIn(lines: readonly string[]): string | null | undefined {
    const begin = lines.indexOf(`${this.#mark} begin`);
    if (begin < 0) return undefined;
    const told = lines.slice(lines.indexOf(`${this.#mark} version`) + 1, begin);
    return told[0]?.trim() || null;
  }

  /** null: gpu-owner has not answered; 'missing': it isn't there; 'directory': nor is that; 'broken': it began to. */
  read(output: string, errors: string): RawAnswer | 'missing' | 'directory' | 'broken' | null {
    if (output.includes(`\n${this.#mark} missing\n`)) return 'missing';
    if (output.includes(`\n${this.#mark} directory\n`)) return 'directory';
    const version = between(output, `\n${this.#mark} version\n`, `\n${this.#mark} begin\n`);
    if (version === null) return output.includes(`${this.#mark} version`) ? 'broken' : null;
    const text = between(output, `\n${this.#mark} begin\n`, `\n${this.#mark} end `);
    const code = new RegExp(`\n${this.#mark} end (\\d{1,3})\n`).exec(output)?.[1];
    if (text === null || code === undefined) return 'broken';
    return {
      version: version.trim().split('\n')[0] || null,
      exitCode: Number(code),
      output: text,
      errors: between(errors, `\n${this.#mark} begin\n`, `\n${this.#mark} end\n`) ?? errors,
    };
  }
}

function printMark(mark: string, text: string): string {
  return `printf '\\n%s %s\\n' ${mark} ${text}`;
}

function searchFor(otherwise: string): string {
  return `command -v gpu-owner >/dev/null 2>&1 || { ${otherwise}; exit 0; }`;
}

function enter(directory: string, otherwise: string): string {
  return `cd ${shellWords([directory])} 2>/dev/null || { ${otherwise}; exit 0; }`;
}

/** A command of gpu-owner that a host runs, and what comes before its output. */
export class RemoteStart {
  readonly #mark = newMark();
  readonly #isQuiet: boolean;
  #before = '';
  #found: string | null = null;

  /** @param isQuiet begins with the first GPUs, not with gpu-owner */
  constructor(isQuiet: boolean) {
    this.#isQuiet = isQuiet;
  }

  commandLine(
    { command }: Host,
    { words, directory }: { words: readonly string[]; directory: string },
  ): string {
    const mark = (text: string) => printMark(this.#mark, text);
    const [name, ...rest] = words;
    const all = shellWords([
      name ?? '',
      this.#isQuiet ? `--over-ssh=${this.#mark} granted` : '--over-ssh',
      ...rest,
    ]);
    // The parent of gpu-owner is sshd then, which ends with the connection.
    const isSimple = command === null || !/[;&|<>()`'"\\#]/.test(command);
    return encode([
      FIND,
      ...(command === null ? [searchFor(mark('missing'))] : []),
      enter(directory, mark('directory')),
      mark(this.#isQuiet ? 'reached' : 'begin'),
      isSimple ? `exec env ${command ?? 'gpu-owner'} ${all}` : `${command} ${all}`,
    ]);
  }

  /** Whether the output is that of the command by now. */
  get isOver(): boolean {
    return this.#found === 'begin' || this.#found === 'granted';
  }

  /** Whether the login has come so far that gpu-owner starts. */
  get hasReached(): boolean {
    return this.isOver || this.#before.includes(this.#mark);
  }

  /** Shells and gpu-owner have printed it before the command began. */
  get withheld(): string {
    return this.#before;
  }

  /** @returns the part of the output that is to be shown */
  read(bytes: Buffer): Buffer {
    if (this.isOver) return bytes;
    // Latin-1 keeps each byte as it is.
    this.#before = (this.#before + bytes.toString('latin1')).slice(-MAX_BEFORE);
    const found = new RegExp(`\n${this.#mark} (begin|granted|missing|directory)\r?\n`).exec(this.#before);
    if (found === null) return Buffer.alloc(0);
    this.#found = found[1] ?? null;
    return Buffer.from(this.#before.slice(found.index + found[0].length), 'latin1');
  }

  /** 'missing': gpu-owner isn't there; 'directory': that isn't; null: the host hasn't said. */
  get missing(): 'missing' | 'directory' | null {
    return this.#found === 'missing' || this.#found === 'directory' ? this.#found : null;
  }
}

const MAX_BEFORE = 1024 * 1024;

function between(text: string, begin: string, end: string): string | null {
  const from = text.indexOf(begin);
  const to = text.indexOf(end, from + begin.length - 1);
  return from < 0 || to < 0 ? null : text.slice(from + begin.length, Math.max(to, from + begin.length));
}
