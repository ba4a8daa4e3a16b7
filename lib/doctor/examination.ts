import { GPUOwnerError } from '../errors.ts';
import { onWarning, sanitize } from '../platform/index.ts';
import { reportClaimable } from './claimable.ts';
import { Collector, guarded } from './collector.ts';
import type { Facts, Finding, Options } from './finding.ts';
import { type Message, type Part, PartProcess } from './part-process.ts';

const PATIENCE = 5_000;
/** GPUs that start up take one to three seconds each, and the driver is waited for as long as ten. */
const DRIVER_PATIENCE = 25_000;

const PARTS: Record<string, Part> = {
  installation: {
    subject: 'installation',
    patience: PATIENCE,
    run: async (report) => {
      (await import('./installation.ts')).examineInstallation(report);
      (await import('./limits.ts')).examineLimits(report);
    },
  },
  driver: {
    subject: 'driver',
    patience: DRIVER_PATIENCE,
    run: async (report) => (await import('./driver.ts')).examineDriver(report),
  },
  'lock-directory': {
    subject: 'lock-directory',
    patience: PATIENCE,
    run: async (report, options) =>
      (await import('./lock-directory.ts')).examineLockDirectory(report, options),
  },
  surroundings: {
    subject: 'surroundings',
    patience: PATIENCE,
    run: async (report) => (await import('./surroundings.ts')).examineSurroundings(report),
  },
  conventions: {
    subject: 'conventions',
    patience: PATIENCE,
    run: async (report) => (await import('./conventions.ts')).examineConventions(report),
  },
  configuration: {
    subject: 'configuration',
    patience: PATIENCE,
    run: async (report) => (await import('./configuration.ts')).examineConfiguration(report),
  },
};

/**
 * Looks at everything that claims depend on. Takes no lock that anybody could meet and writes nothing, but starts the driver as a claim
 * does. Never throws, however broken what it looks at is, and comes to an end where a check hangs; it takes less than a second as a rule.
 *
 * @param command the words that start this program again, up to its own arguments
 * @param onSlow is told what takes longer than a few seconds
 */
export async function examine(
  command: readonly string[],
  options: Options,
  onSlow: (doing: string) => void = () => {},
): Promise<Finding[]> {
  const collector = new Collector();
  await Promise.all(
    Object.entries(PARTS).map(([name, part]) =>
      new PartProcess(name, part, collector).run(command, options, onSlow),
    ),
  );
  await guarded('configuration', collector, (report) => reportClaimable(report, collector.facts));
  return collector.sorted();
}

/** Runs one part for the process that has started this one, and tells it line by line. */
export async function runPart(name: string, options: Options, write: (line: string) => void): Promise<void> {
  const part = Object.hasOwn(PARTS, name) ? PARTS[name] : undefined;
  if (part === undefined)
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `there is no part '${sanitize(name)}'`);
  onWarning(() => {}); // what they say is found in better words
  const tell = (message: Message) => write(JSON.stringify(message));
  tell({ begun: true });
  const facts = new Proxy({} as Facts, {
    set: (_, key, value) => {
      tell({ facts: { [key]: value } });
      return true;
    },
  });
  await guarded(
    part.subject,
    { add: (found) => tell({ finding: found }), facts },
    (report) => part.run(report, options),
    (step) => tell({ step }),
  );
  tell({ done: true });
}
