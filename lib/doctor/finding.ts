import { sanitize } from '../platform/index.ts';

/**
 * ok: as it should be; note: worth knowing; warning: something doesn't work as well, or as safely, as it could; problem: claims
 * fail here, or don't protect.
 */
export type Level = 'ok' | 'note' | 'warning' | 'problem';

/** What findings are about, in the order in which they are shown. */
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

/** All that can be found. Scripts depend on these names; docs/doctor.md explains each. */
export const CATALOGUE = {
  version: ['installation', 'ok'],
  simulated: ['installation', 'note'],
  'native-missing': ['installation', 'problem'],
  'program-missing': ['installation', 'problem'],
  'installation-private': ['installation', 'note'],
  'installation-changeable': ['installation', 'warning'],
  limits: ['installation', 'ok'],
  'limit-files': ['installation', 'problem'],
  'limit-processes': ['installation', 'warning'],

  driver: ['driver', 'ok'],
  'driver-missing': ['driver', 'problem'],
  'driver-failed': ['driver', 'problem'],
  'device-nodes-made': ['driver', 'note'],
  'cuda-library': ['driver', 'ok'],
  'cuda-library-missing': ['driver', 'problem'],
  'cuda-library-broken': ['driver', 'problem'],
  'cuda-library-version': ['driver', 'note'],
  'persistence-off': ['driver', 'note'],
  mps: ['driver', 'note'],

  gpus: ['gpus', 'ok'],
  'no-gpus': ['gpus', 'problem'],
  'gpu-lost': ['gpus', 'problem'],
  'gpu-reset-required': ['gpus', 'problem'],
  'gpu-no-permission': ['gpus', 'problem'],
  'gpu-not-responding': ['gpus', 'problem'],
  'gpu-failed': ['gpus', 'problem'],
  'compute-mode-exclusive': ['gpus', 'note'],
  'compute-mode-prohibited': ['gpus', 'warning'],
  mig: ['gpus', 'note'],
  'mig-empty': ['gpus', 'warning'],
  'processes-unknown': ['gpus', 'note'],
  'hidden-use': ['gpus', 'warning'],

  'lock-directory': ['lock-directory', 'ok'],
  'lock-directory-unusable': ['lock-directory', 'problem'],
  'lock-directory-passed-over': ['lock-directory', 'warning'],
  'lock-directory-mode': ['lock-directory', 'warning'],
  'lock-directory-not-sticky': ['lock-directory', 'warning'],
  'lock-directory-owner': ['lock-directory', 'note'],
  'lock-directory-full': ['lock-directory', 'problem'],
  'lock-directory-space': ['lock-directory', 'warning'],
  'lock-directory-private': ['lock-directory', 'problem'],
  'lock-directory-in-container': ['lock-directory', 'warning'],
  'lock-directory-leftovers': ['lock-directory', 'note'],
  'lock-file-unusable': ['lock-directory', 'problem'],
  'lock-file-linked': ['lock-directory', 'warning'],
  'foreign-lock': ['lock-directory', 'problem'],
  'queue-spoilt': ['lock-directory', 'problem'],
  'lease-file-removed': ['lock-directory', 'problem'],
  'claimant-stuck': ['lock-directory', 'warning'],
  'process-stuck': ['lock-directory', 'warning'],
  'two-lock-directories': ['lock-directory', 'note'],
  locks: ['lock-directory', 'ok'],
  'locks-broken': ['lock-directory', 'problem'],
  'locks-untested': ['lock-directory', 'note'],
  leases: ['lock-directory', 'ok'],

  surroundings: ['surroundings', 'ok'],
  container: ['surroundings', 'note'],
  'pid-namespace': ['surroundings', 'note'],
  'processes-hidden': ['surroundings', 'note'],
  'private-tmp': ['surroundings', 'warning'],
  wsl: ['surroundings', 'note'],

  conventions: ['conventions', 'ok'],
  'convention-in-use': ['conventions', 'note'],
  'safe-gpu-waits': ['conventions', 'warning'],

  configuration: ['configuration', 'ok'],
  'configuration-broken': ['configuration', 'problem'],
  thresholds: ['configuration', 'note'],
  'gpus-banned': ['configuration', 'note'],
  'rule-without-gpu': ['configuration', 'warning'],
  'visible-devices': ['configuration', 'note'],
  'visible-devices-odd': ['configuration', 'warning'],
  'nothing-claimable': ['configuration', 'problem'],

  // Of whichever subject.
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
  /** What was found, a sentence or two. */
  text: string;
  /** What to do about it, commands in backticks; null where nothing is to be done. */
  remedy: string | null;
}

const LONGEST = 1_500;

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
    text: sanitize(text, LONGEST),
    remedy: remedy === null ? null : sanitize(remedy, LONGEST),
  };
}

/** Where an examination puts what it finds, as it finds it: should it hang, what came before is known. */
export interface Report {
  add(id: FindingId, text: string, remedy?: string | null): void;
  /** Says what is done next, where that may take for ever: 'looking at the file system of /mnt'. */
  step(doing: string): void;
  /** What other examinations need. */
  tell(facts: Facts): void;
}

/** What was learnt that concerns more than one subject. Everything in it can be written as JSON. */
export interface Facts {
  gpus?: readonly import('../gpus/index.ts').GPU[];
  /** UUIDs that the inherited CUDA_VISIBLE_DEVICES allows; null: it isn't set, all. */
  visible?: readonly string[] | null;
  /** Why the variable means less than it seems to; '' where it doesn't. */
  visibleNote?: string;
  configuration?: import('../config/index.ts').Configuration;
}

/** What the caller of the doctor says. */
export interface Options {
  lockDirectory?: string | undefined;
}
