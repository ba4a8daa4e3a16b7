import { homedir, userInfo } from 'node:os';
import { asError, GPUOwnerError, ifPossible } from '../errors.ts';
import { resetOf } from '../gpus/index.ts';
import { hostName, sanitize } from '../platform/index.ts';

/**
 * ok: as it should be; note: worth knowing; warning: something doesn't work as well, or as safely, as it could; problem: claims
 * fail here, or don't protect.
 */
export type Level = 'ok' | 'note' | 'warning' | 'problem';

/**
 * Findings of the doctor that aren't an error of a claim. Scripts depend on these names; docs/doctor.md explains each. The others
 * are named by the error's code, and those of the self-test by their check.
 */
export const CATALOGUE = {
  version: 'ok',
  simulated: 'note',

  configuration: 'ok',
  'enforce-not-running': 'warning',

  'lock-directory': 'ok',
  'lock-directory-removable': 'warning',
  'lock-directory-private': 'problem',
  'locks-broken': 'problem',

  driver: 'ok',
  gpus: 'ok',
  'gpu-unusable': 'problem',
  'memory-repair-pending': 'warning',
  'persistence-off': 'note',
  cuda: 'ok',
  'cuda-failed': 'problem',

  'check-hangs': 'problem',
  'check-failed': 'problem',
} as const satisfies Record<string, Level>;

export type FindingId = keyof typeof CATALOGUE;

/** The contract of `doctor --json`, and what a check of the self-test tells. */
export interface Finding {
  id: string;
  level: Level;
  /** The check that has found it. */
  subject: string;
  /** A sentence or two. */
  text: string;
  /** Tells what to do about it, with commands in backticks; null: nothing. */
  remedy: string | null;
}

const MAX_TEXT = 1_500;

export function finding(
  id: string,
  level: Level,
  subject: string,
  text: string,
  remedy: string | null = null,
): Finding {
  const plain = remedy === null ? null : sanitize(remedy, MAX_TEXT);
  return { id, level, subject, text: sanitize(text, MAX_TEXT), remedy: plain };
}

/** Receives what a check of the doctor finds, as soon as it does: if the check hangs later, the rest is known. */
export interface Report {
  add(id: FindingId, text: string, remedy?: string | null): void;
  /** Says what is done next, and how long that may take where it is longer than the check's limit: 'starting the NVIDIA driver'. */
  step(doing: string, timeoutMs?: number): void;
}

/** The finding for an error that ended a check of the doctor. A claim ends with the same one, unless it is a mistake of ours. */
export function failure(subject: string, error: unknown): Finding {
  if (error instanceof GPUOwnerError && error.code !== 'ERR_INTERNAL') {
    const { text, remedy } = sentences(error.message);
    return finding(error.code, 'problem', subject, text, remedy);
  }
  const text = error instanceof GPUOwnerError ? error.message : String(asError(error).stack);
  return finding(
    'check-failed',
    'problem',
    subject,
    `This check itself failed, so its subject was not checked: ${text}`,
    'Please report it, with this message.',
  );
}

/** Splits an error's message into the problem (its first sentence) and the remedy (the others). */
export function sentences(error: string): { text: string; remedy: string | null } {
  const line = error.replace(/([:;.,]?)\s*\n\s*/g, (_, end) => `${end || ';'} `);
  const message = line.charAt(0).toUpperCase() + line.slice(1);
  const end = message.search(/\. (?=[A-Z`])/);
  return end < 0
    ? { text: message, remedy: null }
    : { text: message.slice(0, end + 1), remedy: message.slice(end + 2) };
}

/** Ends a check of the self-test that has found something wrong. */
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

/** The finding for what has ended a check of the self-test. */
export function endOf(name: string, error: unknown): Finding {
  if (error instanceof NotPossible) return finding(name, 'note', name, error.message);
  if (error instanceof CheckFailure) return finding(name, 'problem', name, error.message, error.remedy);
  return finding(name, 'problem', name, `The check itself failed: ${asError(error).message}`, REPORT_IT);
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
