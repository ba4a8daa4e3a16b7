import { ErrorCode, GPUOwnerError } from '../errors.ts';
import { formatDuration, sanitize, schema, sleep } from '../platform/index.ts';
import { type CheckName, checksThatNeed } from './checks.ts';
import type { DriverReport, GPUReport, Machine } from './context.ts';
import { anonymize, type Finding, finding } from './finding.ts';
import { parseChecks } from './part.ts';
import { listen } from './run-checks.ts';
import { Subprocess, stopPrograms } from './subprocess.ts';

interface SelftestOptions {
  /** The words that start this program again, up to its own arguments. */
  command: readonly string[];
  /** Which GPUs, and whose locks count, as the options of claims. */
  claim: readonly string[];
  /** How many GPUs to claim; null: two, or one where two aren't free. */
  count: number | null;
  /** The options with which the GPUs are waited for. */
  wait: readonly string[];
  /** The only checks to be made, as a list with commas; undefined: all. */
  only: string | undefined;
  /** For everything after the first claim. */
  timeoutMs: number;
  /** Is told each result as soon as it is known. */
  onResult: (result: CheckResult) => void;
  /** Is told each line for standard error, as of a claim that waits. */
  onProgress: (line: string) => void;
}

/** A line of the report, a contract of `selftest --json`. */
export interface CheckResult {
  name: string;
  result: 'passed' | 'failed' | 'skipped';
  /** The finding; of a skipped check, why it isn't possible here. */
  detail: string;
  /** Tells what to do; null unless the check failed. */
  remedy: string | null;
}

/** The contract of `selftest --json`. Nothing in it tells whose machine it is. */
export interface SelftestReport {
  driver: DriverReport;
  gpus: GPUReport[];
  checks: CheckResult[];
}

/**
 * Proves gpu-owner on this machine's driver. Each part runs in processes of its own, so that this one ends also where the driver hangs.
 * Only claimed GPUs are used, and all are released, however it ends.
 *
 * @throws what a claim throws, where no GPU can be had
 */
export async function runSelftest(options: SelftestOptions): Promise<SelftestReport> {
  let interrupted: NodeJS.Signals | null = null;
  const selftest = new Selftest(options, () => interrupted !== null);
  const interrupt = (signal: NodeJS.Signals) => {
    interrupted ??= signal;
    selftest.endWait();
    void stopPrograms();
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, interrupt);
  try {
    return await selftest.report();
  } finally {
    await stopPrograms();
    for (const signal of signals) process.off(signal, interrupt);
    // As it would have ended without us: who waits for it learns which signal it was.
    if (interrupted !== null) {
      options.onProgress('gpu-owner: interrupted; all GPUs are released.');
      process.kill(process.pid, interrupted);
      await sleep(1_000); // the signal is on its way
    }
  }
}

/** Two claims, and what came of the checks under them. */
class Selftest {
  readonly #options: SelftestOptions;
  readonly #names: readonly CheckName[];
  readonly #results = new Map<string, CheckResult>();
  #machine: Machine | null = null;
  #program: Subprocess | null = null;
  #end = Number.POSITIVE_INFINITY;
  readonly #isInterrupted: () => boolean;

  constructor(options: SelftestOptions, isInterrupted: () => boolean) {
    this.#options = options;
    this.#isInterrupted = isInterrupted;
    this.#names = parseChecks(options.only, checksThatNeed('claim', 'gpu'));
  }

  async report(): Promise<SelftestReport> {
    const { driver, gpus, claimed } = await this.#claimAndCheck();
    if (!this.#isInterrupted() && this.#left() > 0)
      await this.#supervise(this.#part(`gpu:${claimed.join()}`));
    const obstacle = this.#isInterrupted()
      ? 'interrupted'
      : this.#left() > 0
        ? 'an earlier check did not end'
        : `no time was left (--timeout ${formatDuration(this.#options.timeoutMs)})`;
    for (const name of this.#names) this.#note(finding(name, 'note', name, obstacle));
    return { driver, gpus, checks: this.#names.flatMap((name) => this.#results.get(name) ?? []) };
  }

  /** The first claim: as many GPUs as were asked for, or two, or one. */
  async #claimAndCheck(): Promise<Machine> {
    const { command, claim, count, wait } = this.#options;
    const attempts =
      count !== null
        ? [{ count, wait }]
        : [
            { count: 2, wait: ['--no-wait'] },
            { count: 1, wait },
          ];
    let error = new GPUOwnerError('ERR_ABORTED', 'interrupted');
    for (const attempt of attempts) {
      const options = [`--gpus=${attempt.count}`, '--placeholder=none'];
      const words = [...command, 'run', ...options, ...attempt.wait, ...claim, '--', ...this.#part('claim')];
      error = await this.#supervise(words);
      if (this.#machine !== null) return this.#machine;
      if (!['ERR_GPU_UNAVAILABLE', 'ERR_INVALID_ARGUMENT'].includes(error.code)) break;
    }
    throw error;
  }

  /** Ends a claim that waits for GPUs. */
  endWait(): void {
    if (this.#machine === null) this.#program?.kill('SIGTERM');
  }

  #left(): number {
    return this.#end - performance.now();
  }

  #part(part: string): string[] {
    const { command, claim } = this.#options;
    return [...command, 'check-part', part, `--only=${this.#names.join()}`, ...claim];
  }

  /** The first finding of a check counts. */
  #note({ id: name, level, text, remedy }: Finding): void {
    if (this.#results.has(name)) return;
    const result = level === 'ok' ? 'passed' : level === 'note' ? 'skipped' : 'failed';
    const plain = remedy === null ? null : anonymize(remedy);
    this.#results.set(name, { name, result, detail: anonymize(text), remedy: plain });
    this.#options.onResult({ name, result, detail: anonymize(text), remedy: plain });
  }

  /** Runs a process that makes checks. @returns why it ended before any check */
  async #supervise(words: readonly string[]): Promise<GPUOwnerError> {
    let error: GPUOwnerError | null = null;
    const program = new Subprocess(words, {
      env: { ...process.env, GPU_OWNER_ERRORS: 'json' },
      onError: (line) => {
        error ??= errorIn(line);
        if (error === null) this.#options.onProgress(line);
      },
    });
    this.#program = program;
    await listen(program, {
      // An interrupted check has found nothing.
      onFinding: (found) => !this.#isInterrupted() && this.#note(found),
      onMachine: (machine) => {
        this.#machine = machine;
        this.#end = performance.now() + this.#options.timeoutMs;
      },
      // Until the first GPUs are claimed, the options of the claim say how long that may take.
      ...(this.#machine === null ? { startTimeoutMs: 2 ** 31 - 1 } : {}),
      left: () => this.#left(),
    });
    await program.stop();
    const last = sanitize(program.errors.trim().split('\n').at(-1) ?? '');
    return error ?? new GPUOwnerError('ERR_INTERNAL', `the self-test's own process ended: ${last}`);
  }
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
