import { GPUOwnerError } from '../errors.ts';
import { onWarning, sanitize } from '../platform/index.ts';
import { type Check, CheckProcess, type Message } from './check-process.ts';
import { type Finding, FindingCollector, guarded } from './finding.ts';

const CHECK_TIMEOUT_MS = 5_000;
/** The start of the driver is waited for as long as 30 s; then there is a step after each GPU that has started. */
const DRIVER_TIMEOUT_MS = 35_000;

const CHECKS: Record<string, Check> = {
  installation: {
    subject: 'installation',
    timeoutMs: CHECK_TIMEOUT_MS,
    run: async (report) => {
      (await import('./installation.ts')).checkInstallation(report);
    },
  },
  driver: {
    subject: 'driver',
    timeoutMs: DRIVER_TIMEOUT_MS,
    run: async (report) => {
      await (await import('./driver.ts')).checkDriver(report);
      await (await import('./cuda.ts')).checkCUDA(report);
    },
  },
  'lock-directory': {
    subject: 'lock-directory',
    timeoutMs: CHECK_TIMEOUT_MS,
    run: async (report) => {
      (await import('./lock-directory.ts')).checkLockDirectory(report);
    },
  },
  surroundings: {
    subject: 'surroundings',
    timeoutMs: CHECK_TIMEOUT_MS,
    run: async (report) => (await import('./environment.ts')).checkEnvironment(report),
  },
  conventions: {
    subject: 'conventions',
    timeoutMs: CHECK_TIMEOUT_MS,
    run: async (report) => (await import('./configuration.ts')).checkOtherTools(report),
  },
  configuration: {
    subject: 'configuration',
    timeoutMs: CHECK_TIMEOUT_MS,
    run: async (report) => (await import('./configuration.ts')).checkConfiguration(report),
  },
};

/**
 * Looks at everything that claims depend on. Takes no lock that another process could meet, but starts the driver as a claim does, and CUDA on
 * free GPUs. Writes nothing, except what CUDA says there. Never throws, however broken what it looks at is, and comes to an end where a check hangs; it takes a second as a rule.
 *
 * @param command the words that start this program again, up to its own arguments
 * @param onSlow is told what takes longer than a few seconds
 */
export async function runChecks(
  command: readonly string[],
  onSlow: (doing: string) => void = () => {},
): Promise<Finding[]> {
  const collector = new FindingCollector();
  await Promise.all(
    Object.entries(CHECKS).map(([name, check]) =>
      new CheckProcess(name, check, collector).run(command, onSlow),
    ),
  );
  return collector.sorted();
}

/** Runs one check for the process that has started this one, and tells it line by line. */
export async function runCheck(name: string, write: (line: string) => void): Promise<void> {
  const check = Object.hasOwn(CHECKS, name) ? CHECKS[name] : undefined;
  if (check === undefined)
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `there is no check '${sanitize(name)}'`);
  onWarning(() => {}); // findings say the same in better words
  const tell = (message: Message) => write(JSON.stringify(message));
  tell({ begun: true });
  await guarded(
    check.subject,
    { add: (found) => tell({ finding: found }) },
    (report) => check.run(report),
    (step) => tell({ step }),
  );
  tell({ done: true });
}
