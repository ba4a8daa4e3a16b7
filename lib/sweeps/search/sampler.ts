// A sampler of Optuna, in a helper process that is asked and told.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { GPUOwnerError } from '../../errors.ts';
import { packageRoot } from '../../native.ts';
import { sanitize, usageError } from '../../platform/index.ts';
import type { SearchMethod } from '../files/index.ts';
import type { CodedParameter } from './coding.ts';

/** The packages that a method needs. */
const PACKAGES: Readonly<Record<string, string>> = {
  tpe: 'optuna',
  gp: 'optuna scipy torch',
  cmaes: 'optuna cmaes',
};

interface SamplerOptions {
  /** A program of the user's. */
  python: string;
  directory: string;
  method: SearchMethod;
  goal: 'minimize' | 'maximize';
  space: readonly CodedParameter[];
}

/** A trial as a sampler knows it. */
interface CodedTrial {
  number: number;
  parameters: Readonly<Record<string, number>>;
}

interface Answer extends Partial<CodedTrial> {
  error?: string;
  missing?: string | null;
}

const MAX_COMPLAINT_LENGTH = 2_000;

/** Thrown when the helper process has ended: another one may be started and told everything. */
export class SamplerGoneError extends GPUOwnerError {
  constructor(why: string) {
    super('ERR_SYSTEM', `the helper process of the search ${why}`);
  }
}

/** A helper process, which keeps nothing: all that it was told is gone with it. */
export class Sampler {
  readonly #options: SamplerOptions;
  readonly #child;
  readonly #lines;
  readonly #answers: AsyncIterator<string>;
  /** When it has ended, and all of its complaint is there. */
  readonly #ended: Promise<unknown>;
  #complaint = '';

  constructor(options: SamplerOptions) {
    this.#options = options;
    const child = spawn(options.python, [`${packageRoot}/python/search_helper.py`], {
      cwd: options.directory,
      stdio: 'pipe',
    });
    child.on('error', (error) => {
      this.#complaint = error.message;
    });
    child.stdin.on('error', () => {}); // no answer comes, which tells it
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#complaint = (this.#complaint + text).slice(-MAX_COMPLAINT_LENGTH);
    });
    this.#ended = new Promise((resolve) => child.once('close', resolve));
    this.#lines = createInterface(child.stdout);
    this.#answers = this.#lines[Symbol.asyncIterator]();
    this.#child = child;
  }

  /** Comes first. @throws ERR_INVALID_ARGUMENT if Optuna isn't there, SamplerGoneError */
  async begin(): Promise<void> {
    const { method, goal, space } = this.#options;
    await this.#request({ method, goal, space });
  }

  /**
   * Chooses a trial.
   * @param known it was chosen before, with these parameters
   * @throws GPUOwnerError, SamplerGoneError
   */
  async ask(seed: number, known: CodedTrial['parameters'] | null): Promise<CodedTrial> {
    return (await this.#request({ seed, known })) as CodedTrial;
  }

  /**
   * Tells how a trial has ended.
   * @param value null: it has failed @param step where it was stopped; null: it wasn't
   * @throws GPUOwnerError, SamplerGoneError
   */
  async tell(number: number, value: number | null, step: number | null): Promise<void> {
    await this.#request({ number, value, step });
  }

  async #request(message: unknown): Promise<Answer> {
    this.#child.stdin.write(`${JSON.stringify(message)}\n`);
    const { value: line, done } = await this.#answers.next();
    if (done) {
      await this.#ended;
      const why = sanitize(this.#complaint.trim().split('\n').at(-1), 300);
      throw new SamplerGoneError(`has ended${why === '' ? '' : `: ${why}`}`);
    }
    const answer = parseAnswer(line as string);
    if (answer.error !== undefined) throw this.#failure(answer);
    return answer;
  }

  #failure({ missing, error }: Answer): GPUOwnerError {
    const { method, python } = this.#options;
    const packages = PACKAGES[method];
    const text =
      missing === undefined
        ? `Optuna can't choose a trial: ${sanitize(error, 500)}`
        : `--method ${method} needs Optuna, and ${python} doesn't find ${missing}: pip install ${packages}. Without it: --method random`;
    return usageError(text);
  }

  /** Ends the process, also one that hangs: no answer comes then. */
  close(): void {
    this.#child.stdin.destroy();
    this.#child.stdout.destroy();
    this.#child.stderr.destroy();
    this.#child.kill('SIGKILL');
    this.#lines.close();
  }
}

/** @throws SamplerGoneError for the output of another program, such as a script called python3 */
function parseAnswer(line: string): Answer {
  try {
    return JSON.parse(line) as Answer;
  } catch {
    // Nothing else fails there.
    throw new SamplerGoneError(`has written something else than an answer: ${sanitize(line, 200)}`);
  }
}
