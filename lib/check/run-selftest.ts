import { ErrorCode, GPUOwnerError } from '../errors.ts';
import { formatDuration, sanitize, schema, sleep } from '../platform/index.ts';
import { CHECK_NAMES, CHECKS, type CheckName, type CheckResult, REPORT_IT, resultOf } from './check.ts';
import type { DriverReport, GPUReport, PartMessage } from './part.ts';
import { messageIn, Subprocess, stopPrograms } from './subprocess.ts';

interface SelftestOptions {
  /** The words that start this program again, up to its own arguments. */
  command: readonly string[];
  /** Which GPUs, and whose locks count, as the options of claims. */
  claim: readonly string[];
  /** How many GPUs to claim; null: two, or one where two aren't free. */
  count: number | null;
  /** The options with which the GPUs are waited for. */
  wait: readonly string[];
  /** The only part whose checks are made; null: those of all parts. */
  only: string | null;
  /** For everything after the first claim. */
  timeoutMs: number;
  /** Is told each result as soon as it is known. */
  onResult: (result: CheckResult) => void;
  /** Is told each line for standard error, as of a claim that waits. */
  onProgress: (line: string) => void;
}

/** The contract of `selftest --json`. Nothing in it tells whose machine it is. */
export interface SelftestReport {
  driver: DriverReport;
  gpus: GPUReport[];
  checks: CheckResult[];
}

/** A part that says nothing has crashed, or isn't part of this program. */
const START_TIMEOUT_MS = 60_000;

/**
 * Proves gpu-owner on this machine's driver. Each part runs in processes of its own, so that this one ends also where the driver hangs.
 * Only claimed GPUs are used, and all are released, however it ends.
 *
 * @throws what a claim throws, where no GPU can be had
 */
export async function runSelftest(options: SelftestOptions): Promise<SelftestReport> {
  const run = new Selftest(options);
  let interrupted: NodeJS.Signals | null = null;
  const interrupt = (signal: NodeJS.Signals) => {
    interrupted ??= signal;
    void stopPrograms();
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, interrupt);
  try {
    return await run.report(() => interrupted !== null);
  } finally {
    await stopPrograms();
    for (const signal of signals) process.off(signal, interrupt);
    // As it would have ended without us: who waits for it learns which signal it was.
    if (interrupted !== null) {
      options.onProgress('gpu-owner: interrupted; all GPUs are released.');
      await endBy(interrupted);
    }
  }
}

/** Two claims, and what came of the checks under them. */
class Selftest {
  readonly #options: SelftestOptions;
  readonly #results = new Map<CheckName, CheckResult>();
  #driver: DriverReport | null = null;
  #gpus: GPUReport[] = [];
  #claimed: readonly string[] = [];
  #end = Number.POSITIVE_INFINITY;
  /** Why checks that haven't begun won't be made. */
  #obstacle = 'an earlier check did not end';

  constructor(options: SelftestOptions) {
    this.#options = options;
  }

  async report(isInterrupted: () => boolean): Promise<SelftestReport> {
    await this.#claimAndCheck(isInterrupted);
    if (!isInterrupted() && performance.now() < this.#end && this.#has('outside'))
      await this.#supervise(this.#part('outside', [`--on=${this.#claimed.join()}`]));
    const checks = CHECK_NAMES.map((name) => this.#note(resultOf(name, 'skipped', this.#obstacle)));
    return {
      driver: this.#driver as DriverReport,
      gpus: this.#gpus,
      checks,
    };
  }

  /** The first claim: as many GPUs as were asked for, or two, or one. */
  async #claimAndCheck(isInterrupted: () => boolean): Promise<void> {
    const { count, wait } = this.#options;
    const attempts =
      count !== null
        ? [{ count, wait }]
        : [
            { count: 2, wait: ['--no-wait'] },
            { count: 1, wait },
          ];
    for (const attempt of attempts) {
      const words = [
        ...this.#options.command,
        ...['run', `--gpus=${attempt.count}`, '--placeholder=none', '--until-input-closes'],
        ...attempt.wait,
        ...this.#options.claim,
        '--',
        ...this.#part(this.#has('inside') ? 'inside' : 'claim'),
      ];
      const error = await this.#supervise(words);
      if (this.#driver !== null || isInterrupted()) return;
      const isLast = attempt === attempts.at(-1);
      const isTooMany = ['ERR_GPU_UNAVAILABLE', 'ERR_INVALID_ARGUMENT'].includes(error.code);
      if (isLast || !isTooMany) throw error;
    }
  }

  #has(part: 'inside' | 'outside'): boolean {
    return this.#options.only === null || this.#options.only === part;
  }

  #part(name: string, more: readonly string[] = []): string[] {
    return [...this.#options.command, 'selftest', `--part=${name}`, ...more, ...this.#options.claim];
  }

  /** @returns the first result of this check */
  #note(result: CheckResult): CheckResult {
    const known = this.#results.get(result.name);
    if (known !== undefined) return known;
    this.#results.set(result.name, result);
    this.#options.onResult(result);
    return result;
  }

  /** Runs a process that makes checks, and gives up on it where one takes too long. @returns why it ended before any check */
  async #supervise(words: readonly string[]): Promise<GPUOwnerError> {
    let error: GPUOwnerError | null = null;
    const program = new Subprocess(words, {
      env: { ...process.env, GPU_OWNER_ERRORS: 'json' },
      onError: (line) => {
        error ??= errorIn(line);
        if (error === null) this.#options.onProgress(line);
      },
    });
    let checking: CheckName | null = null;
    let isDone = false;
    while (!isDone) {
      const limit = checking !== null ? CHECKS[checking].timeoutMs : START_TIMEOUT_MS;
      const left = this.#end - performance.now();
      // Until the first GPUs are claimed, the options of the claim say how long that may take.
      const line = await program.line(this.#driver === null ? 2 ** 31 - 1 : Math.min(limit, left));
      const message = line === null ? null : messageIn<PartMessage>(line);
      if (line === null) {
        const { isOver } = program;
        const isLate = !isOver && this.#end <= performance.now();
        if (isLate)
          this.#obstacle = `no time was left (--timeout ${formatDuration(this.#options.timeoutMs)})`;
        if (checking !== null)
          this.#note(await given(checking, isOver ? program : null, isLate ? left : limit));
        break;
      }
      if (message === null) continue; // not ours: a library of the driver's prints as well
      if ('machine' in message) {
        this.#driver = message.machine.driver;
        this.#gpus = message.machine.gpus;
        this.#claimed = message.machine.claimed;
        this.#end = performance.now() + this.#options.timeoutMs;
      } else if ('begun' in message) checking = message.begun;
      else if ('result' in message) {
        this.#note(message.result);
        checking = null;
      } else isDone = true;
    }
    await program.stop();
    const { stderr } = program.isOver ? await program.ended : { stderr: '' };
    const last = sanitize(stderr.trim().split('\n').at(-1) ?? '');
    return error ?? new GPUOwnerError('ERR_INTERNAL', `the self-test's own process ended: ${last}`);
  }
}

/** The result of a check that didn't tell one. @param program has ended; null: it takes too long */
async function given(name: CheckName, program: Subprocess | null, limit: number): Promise<CheckResult> {
  if (program === null) {
    return resultOf(
      name,
      'failed',
      `No answer within ${formatDuration(Math.max(0, limit))}.`,
      'See `dmesg | grep -i nvrm`: a GPU or its driver may hang. If it is only slow, use a longer --timeout.',
    );
  }
  const { code, signal } = await program.ended;
  return resultOf(name, 'failed', `Its process ended with ${signal ?? `exit code ${code}`}.`, REPORT_IT);
}

const ERROR_LINE = schema.jsonOf(
  schema.record({
    error: schema.record({ code: schema.among(Object.values(ErrorCode)), message: schema.text }),
  }),
);

/** Parses the error of a command of ours, as it prints it where GPU_OWNER_ERRORS=json. */
function errorIn(line: string): GPUOwnerError | null {
  const found = schema.readAs(ERROR_LINE, line);
  return found === null ? null : new GPUOwnerError(found.error.code, found.error.message);
}

async function endBy(signal: NodeJS.Signals): Promise<void> {
  process.kill(process.pid, signal);
  await sleep(1_000); // the signal is on its way
}
