import { GPUOwnerError } from '../errors.ts';
import { type Facts, type Finding, finding, type Report, SUBJECTS, type Subject } from './finding.ts';

/** What has been found, by all parts. */
export class Collector {
  readonly facts: Facts = {};
  readonly #findings: Finding[] = [];

  add(found: Finding): void {
    this.#findings.push(found);
  }

  /** By subject, and in each as they were found. */
  sorted(): Finding[] {
    return this.#findings.toSorted((a, b) => SUBJECTS.indexOf(a.subject) - SUBJECTS.indexOf(b.subject));
  }
}

/** Runs one part here; whatever it throws becomes a finding. */
export async function guarded(
  subject: Subject,
  collector: Pick<Collector, 'add' | 'facts'>,
  run: (report: Report) => Promise<void> | void,
  onStep: (step: string) => void = () => {},
): Promise<void> {
  try {
    await run({
      add: (id, text, remedy) => collector.add(finding(id, text, remedy)),
      step: onStep,
      tell: (facts) => Object.assign(collector.facts, facts),
    });
  } catch (error) {
    collector.add(failure(subject, error));
  }
}

export function failure(subject: Subject, error: unknown): Finding {
  // What it can't do without is told where it belongs.
  if (error instanceof GPUOwnerError && error.code === 'ERR_UNSUPPORTED_PLATFORM') {
    return finding(
      'check-skipped',
      "Not looked at, as gpu-owner's native part can't be loaded.",
      null,
      subject,
    );
  }
  const text = error instanceof GPUOwnerError ? error.message : String((error as Error)?.stack ?? error);
  return finding(
    'check-failed',
    `This check has failed itself, so that what it looks at is not known: ${text}`,
    'Please report it, with this message.',
    subject,
  );
}
