import { homedir, userInfo } from 'node:os';
import { ifPossible } from '../errors.ts';
import { resetOf } from '../gpus/index.ts';
import { hostName, sanitize } from '../platform/index.ts';

/**
 * Every check of the self-test, in the order of the report: the most that it may take, and whether it starts CUDA. Scripts depend on
 * these names; docs/doctor.md explains each.
 */
export const CHECKS = {
  snapshot: { timeoutMs: 60_000, needsCUDA: false },
  fields: { timeoutMs: 90_000, needsCUDA: false },
  'idle-memory': { timeoutMs: 30_000, needsCUDA: false },
  energy: { timeoutMs: 30_000, needsCUDA: false },
  'side-by-side': { timeoutMs: 30_000, needsCUDA: false },
  'cuda-library': { timeoutMs: 20_000, needsCUDA: false },
  'cuda-devices': { timeoutMs: 60_000, needsCUDA: true },
  'cuda-listed': { timeoutMs: 70_000, needsCUDA: true },
  'cuda-memory': { timeoutMs: 20_000, needsCUDA: true },
  'nvidia-smi-processes': { timeoutMs: 30_000, needsCUDA: true },
  'cuda-files': { timeoutMs: 20_000, needsCUDA: true },
  'cuda-killed': { timeoutMs: 30_000, needsCUDA: true },
  'pytorch-devices': { timeoutMs: 170_000, needsCUDA: true },
  'nested-claims': { timeoutMs: 180_000, needsCUDA: true },
  'other-nvml-user': { timeoutMs: 60_000, needsCUDA: false },
  placeholder: { timeoutMs: 80_000, needsCUDA: true },
  exclusion: { timeoutMs: 130_000, needsCUDA: false },
  'hand-over': { timeoutMs: 150_000, needsCUDA: true },
  'owner-killed': { timeoutMs: 120_000, needsCUDA: true },
  'keeper-killed': { timeoutMs: 120_000, needsCUDA: true },
  'placeholder-memory': { timeoutMs: 150_000, needsCUDA: true },
  'all-gpus': { timeoutMs: 80_000, needsCUDA: true },
  'pytorch-computes': { timeoutMs: 170_000, needsCUDA: true },
  'full-gpu': { timeoutMs: 130_000, needsCUDA: true },
  'full-load': { timeoutMs: 60_000, needsCUDA: true },
  'full-killed': { timeoutMs: 100_000, needsCUDA: true },
  mig: { timeoutMs: 150_000, needsCUDA: true },
} as const satisfies Record<string, { timeoutMs: number; needsCUDA: boolean }>;

export type CheckName = keyof typeof CHECKS;

/** {@link CHECKS} with the type of their names. */
export const CHECK_NAMES = Object.keys(CHECKS) as CheckName[];

/** A line of the report, a contract of `selftest --json`. */
export interface CheckResult {
  name: CheckName;
  result: 'passed' | 'failed' | 'skipped';
  /** The finding; of a skipped check, why it isn't possible here. */
  detail: string;
  /** Tells what to do; null unless the check failed. */
  remedy: string | null;
}

/** Ends a check that has found something wrong. */
class CheckFailure extends Error {
  readonly remedy: string;

  constructor(detail: string, remedy: string) {
    super(detail);
    this.remedy = remedy;
  }
}

/** Ends a check that can't be made on this machine. */
class NotPossible extends Error {}

export const REPORT_IT = 'Please report it, with the output of `gpu-owner selftest --json`.';

export const SEE_STATUS =
  'Run `gpu-owner status`: it says what is in the way. If an earlier check has left it there, see that one first.';

export const AFTER_CRASHES = `Claim with \`--wait\` where jobs crash. If it lasts for minutes, see \`dmesg | grep -i nvrm\`. ${resetOf('N')}.`;

export function fail(detail: string, remedy = REPORT_IT): never {
  throw new CheckFailure(detail, remedy);
}

export function skip(why: string): never {
  throw new NotPossible(why);
}

/** Makes one check: `run` returns what it has found, or ends with {@link fail} or {@link skip}. @returns whether it passed */
export type RunCheck = (name: CheckName, run: () => Promise<string> | string) => Promise<boolean>;

/**
 * @param tell is told that a check begins, and what came of it
 * @param cudaObstacle why no check can be made that starts CUDA; null: they can
 */
export function checkRunner(
  tell: (message: { begun: CheckName } | { result: CheckResult }) => void,
  cudaObstacle: string | null,
): RunCheck {
  return async (name, run) => {
    tell({ begun: name });
    const result =
      cudaObstacle !== null && CHECKS[name].needsCUDA
        ? resultOf(name, 'skipped', cudaObstacle)
        : await attempt(name, run);
    tell({ result });
    return result.result === 'passed';
  };
}

async function attempt(name: CheckName, run: () => Promise<string> | string): Promise<CheckResult> {
  try {
    return resultOf(name, 'passed', await run());
  } catch (error) {
    if (error instanceof NotPossible) return resultOf(name, 'skipped', error.message);
    if (error instanceof CheckFailure) return resultOf(name, 'failed', error.message, error.remedy);
    const text = error instanceof Error ? error.message : String(error);
    return resultOf(name, 'failed', `The check itself failed: ${text}`, REPORT_IT);
  }
}

const MAX_TEXT = 1_000;

export function resultOf(
  name: CheckName,
  result: CheckResult['result'],
  detail: string,
  remedy: string | null = null,
): CheckResult {
  return {
    name,
    result,
    detail: sanitize(anonymize(detail), MAX_TEXT),
    remedy: remedy === null ? null : sanitize(anonymize(remedy), MAX_TEXT),
  };
}

/** Names that a report must not have. */
interface Person {
  user: string;
  home: string;
  host: string;
}

/** Removes what tells whose machine it is: a report is attached to bug reports, which everybody can read. */
export function anonymize(text: string, { user, home, host }: Person = thisPerson()): string {
  const word = (name: string, stands: string) => (all: string) =>
    name.length < 2 || name === 'root'
      ? all
      : all.replace(new RegExp(`(?<![\\w-])${name.replace(/[^\w]/g, '\\$&')}(?![\\w-])`, 'g'), stands);
  const homeless = home.length > 1 ? text.replaceAll(home, '~') : text;
  const withoutPaths = homeless
    .replace(/\/(home|Users)\/[^/\s'"`,:)]+/g, '~')
    .replace(/\b(GPU|MIG)-(GPU-)?[0-9a-f]{8}-[0-9a-f-]{27}(\/\d+\/\d+)?/gi, '$1-…');
  return [word(host, 'HOST'), word(host.replace(/\..*/, ''), 'HOST'), word(user, 'USER')].reduce(
    (all, hide) => hide(all),
    withoutPaths,
  );
}

function thisPerson(): Person {
  const user = ifPossible(() => userInfo().username, ''); // the password database may have no entry
  return { user, home: homedir(), host: hostName() };
}
