import { asError, GPUOwnerError } from '../errors.ts';
import { sanitize } from '../platform/index.ts';

/**
 * ok: as it should be; note: worth knowing; warning: something doesn't work as well, or as safely, as it could; problem: claims
 * fail here, or don't protect.
 */
export type Level = 'ok' | 'note' | 'warning' | 'problem';

/** Subjects of findings, in the order in which they are shown. */
export const SUBJECTS = [
  'installation',
  'driver',
  'gpus',
  'lock-directory',
  'surroundings',
  'conventions',
  'configuration',
] as const;

export type Subject = (typeof SUBJECTS)[number];

/** Every finding there is. Scripts depend on these names; docs/doctor.md explains each. */
export const CATALOGUE = {
  version: ['installation', 'ok'],
  simulated: ['installation', 'note'],
  'native-missing': ['installation', 'problem'],
  'installation-changeable': ['installation', 'warning'],

  driver: ['driver', 'ok'],
  'driver-missing': ['driver', 'problem'],
  'driver-failed': ['driver', 'problem'],
  'cuda-library': ['driver', 'ok'],
  'cuda-library-missing': ['driver', 'problem'],
  'cuda-library-broken': ['driver', 'problem'],
  'persistence-off': ['driver', 'note'],

  gpus: ['gpus', 'ok'],
  'no-gpus': ['gpus', 'problem'],
  'gpu-lost': ['gpus', 'problem'],
  'gpu-reset-required': ['gpus', 'problem'],
  'gpu-no-permission': ['gpus', 'problem'],
  'gpu-not-responding': ['gpus', 'problem'],
  'gpu-unhealthy': ['gpus', 'problem'],
  'gpu-failed': ['gpus', 'problem'],
  'memory-repair-pending': ['gpus', 'warning'],
  'compute-mode-exclusive': ['gpus', 'note'],
  'compute-mode-prohibited': ['gpus', 'warning'],
  mig: ['gpus', 'note'],
  'mig-empty': ['gpus', 'warning'],
  'hidden-use': ['gpus', 'warning'],
  cuda: ['gpus', 'ok'],
  'cuda-failed': ['gpus', 'problem'],

  'lock-directory': ['lock-directory', 'ok'],
  'lock-directory-unusable': ['lock-directory', 'problem'],
  'lock-directory-passed-over': ['lock-directory', 'warning'],
  'lock-directory-mode': ['lock-directory', 'warning'],
  'lock-directory-not-sticky': ['lock-directory', 'warning'],
  'lock-directory-removable': ['lock-directory', 'note'],
  'lock-directory-private': ['lock-directory', 'problem'],
  'lock-directory-in-container': ['lock-directory', 'warning'],
  'lock-file-unusable': ['lock-directory', 'problem'],
  'lock-file-linked': ['lock-directory', 'warning'],
  'foreign-lock': ['lock-directory', 'problem'],
  'queue-spoilt': ['lock-directory', 'problem'],
  'lease-file-removed': ['lock-directory', 'problem'],
  'claimant-stuck': ['lock-directory', 'warning'],
  'process-stuck': ['lock-directory', 'warning'],
  'preemption-overdue': ['lock-directory', 'warning'],
  locks: ['lock-directory', 'ok'],
  'locks-broken': ['lock-directory', 'problem'],
  leases: ['lock-directory', 'ok'],

  surroundings: ['surroundings', 'ok'],
  container: ['surroundings', 'note'],
  'pid-namespace': ['surroundings', 'note'],
  'private-tmp': ['surroundings', 'warning'],
  wsl: ['surroundings', 'note'],

  conventions: ['conventions', 'ok'],
  'convention-in-use': ['conventions', 'note'],

  configuration: ['configuration', 'ok'],
  'configuration-broken': ['configuration', 'problem'],
  thresholds: ['configuration', 'note'],
  'rule-without-gpu': ['configuration', 'warning'],
  'enforce-not-running': ['configuration', 'warning'],
  'rule-without-user': ['configuration', 'warning'],

  // Findings of any subject.
  'check-hangs': [null, 'problem'],
  'check-failed': [null, 'problem'],
  'check-skipped': [null, 'note'],
} as const satisfies Record<string, readonly [Subject | null, Level]>;

export type FindingId = keyof typeof CATALOGUE;

/** The contract of `doctor --json`: scripts depend on these names. */
export interface Finding {
  id: FindingId;
  level: Level;
  subject: Subject;
  /** A sentence or two. */
  text: string;
  /** Tells what to do about it, with commands in backticks; null: nothing. */
  remedy: string | null;
}

const MAX_TEXT = 1_500;

/** @param subject for those that can be of any */
export function finding(
  id: FindingId,
  text: string,
  remedy: string | null = null,
  subject: Subject = 'installation',
): Finding {
  const [own, level] = CATALOGUE[id];
  return {
    id,
    level,
    subject: own ?? subject,
    text: sanitize(text, MAX_TEXT),
    remedy: remedy === null ? null : sanitize(remedy, MAX_TEXT),
  };
}

/** Receives what a check finds, as soon as it does: if the check hangs later, the rest is known. */
export interface Report {
  add(id: FindingId, text: string, remedy?: string | null): void;
  /** Says what is done next, where that may take for ever: 'looking at the file system of /mnt'. */
  step(doing: string): void;
}

/** The findings of all checks. */
export class FindingCollector {
  readonly #findings: Finding[] = [];

  add(found: Finding): void {
    this.#findings.push(found);
  }

  /** By subject, and in each as they were found. */
  sorted(): Finding[] {
    return this.#findings.toSorted((a, b) => SUBJECTS.indexOf(a.subject) - SUBJECTS.indexOf(b.subject));
  }
}

/** Runs a check in this process; whatever it throws becomes a finding. */
export async function guarded(
  subject: Subject,
  collector: Pick<FindingCollector, 'add'>,
  run: (report: Report) => Promise<void> | void,
  onStep: (step: string) => void = () => {},
): Promise<void> {
  try {
    await run({
      add: (id, text, remedy) => collector.add(finding(id, text, remedy)),
      step: onStep,
    });
  } catch (error) {
    collector.add(failure(subject, error));
  }
}

export function failure(subject: Subject, error: unknown): Finding {
  // The missing native part is a finding of its own.
  if (error instanceof GPUOwnerError && error.code === 'ERR_UNSUPPORTED_PLATFORM') {
    return finding(
      'check-skipped',
      "Not checked, because gpu-owner's native part can't be loaded.",
      null,
      subject,
    );
  }
  const text = error instanceof GPUOwnerError ? error.message : String(asError(error).stack);
  return finding(
    'check-failed',
    `This check itself failed, so its subject was not checked: ${text}`,
    'Please report it, with this message.',
    subject,
  );
}
