// A question as a host's login shell is given it, and what comes back between marks: shells print what their users have set up.
import type { Host } from '../config/index.ts';
import { shellWords } from '../platform/index.ts';

/** The answer of a gpu-owner on a host. */
export interface RawAnswer {
  /** The first line of `--version`; null: the host didn't say. */
  version: string | null;
  exitCode: number;
  output: string;
  errors: string;
}

export class RemoteRequest {
  readonly #mark: string;

  constructor() {
    const { randomBytes } = process.getBuiltinModule('node:crypto');
    this.#mark = `gpu-owner-${randomBytes(16).toString('hex')}`;
  }

  /**
   * For any login shell: what it reads means the same to sh, csh and fish.
   * @param words the arguments of gpu-owner
   */
  commandLine({ command }: Host, words: readonly string[]): string {
    const script = this.#script(command, words);
    const encoded = Buffer.from(script).toString('base64');
    return `exec sh -c 'eval "$(printf %s "$1" | base64 -d)"' sh ${encoded}`;
  }

  #script(command: string | null, words: readonly string[]): string {
    const mark = (text: string) => `printf '\\n%s %s\\n' ${this.#mark} ${text}`;
    const search = `command -v gpu-owner >/dev/null 2>&1 || { ${mark('missing')}; exit 0; }`;
    return [
      'exec </dev/null',
      'PATH=$PATH:$HOME/.local/bin',
      'GPU_OWNER_ERRORS=json; export PATH GPU_OWNER_ERRORS',
      ...(command === null ? [search] : []),
      `ask() { ${command ?? 'gpu-owner'} "$@"; }`,
      mark('version'),
      'ask --version 2>/dev/null',
      `${mark('begin')}; ${mark('begin')} >&2`,
      `ask ${shellWords(words)}`,
      `${mark('"end $?"')}; ${mark('end')} >&2`,
    ].join('\n');
  }

  /** Whether all of an answer is there, by its last characters. */
  isWhole(output: string, errors: string): boolean {
    const ends = (text: string, word: string) => text.includes(`${this.#mark} ${word}`);
    return ends(output, 'missing') || (ends(output, 'end') && ends(errors, 'end'));
  }

  /** null: gpu-owner has not answered; 'missing': it isn't there; 'broken': it began to. */
  read(output: string, errors: string): RawAnswer | 'missing' | 'broken' | null {
    if (output.includes(`\n${this.#mark} missing\n`)) return 'missing';
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

function between(text: string, begin: string, end: string): string | null {
  const from = text.indexOf(begin);
  const to = text.indexOf(end, from + begin.length - 1);
  return from < 0 || to < 0 ? null : text.slice(from + begin.length, Math.max(to, from + begin.length));
}
