import { spawn } from 'node:child_process';
import { GPUOwnerError } from '../errors.ts';
import { sanitize } from '../text.ts';
import { onWarning } from '../warnings.ts';
import { reportClaimable } from './claimable.ts';
import {
  type Facts,
  type Finding,
  finding,
  type Options,
  type Report,
  SUBJECTS,
  type Subject,
} from './finding.ts';

/** A part of the examination. Any of them can hang in the kernel, so each runs in a process of its own. */
interface Part {
  /** What the findings of the examination itself are filed under. */
  subject: Subject;
  /** How long any step of it may take, in ms. */
  patience: number;
  run: (report: Report, options: Options) => Promise<void> | void;
}

/** After so many ms, people are told what takes so long. */
const NOTICE = 3_000;
const PATIENCE = 5_000;
/** To be started, on a machine that is overloaded. */
const START_PATIENCE = 15_000;
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

type Message = { begun: true } | { finding: Finding } | { step: string } | { facts: Facts } | { done: true };

/**
 * Looks at everything that claims depend on. Takes no lock that anybody could meet and writes nothing. Never throws, however broken
 * what it looks at is, and comes to an end where a check hangs; it takes less than a second as a rule.
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
      new Run(name, part, collector).inProcess(command, options, onSlow),
    ),
  );
  await guarded('configuration', collector, (report) => reportClaimable(report, collector.facts));
  return collector.sorted();
}

/** What has been found, by all parts. */
class Collector {
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
async function guarded(
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

function failure(subject: Subject, error: unknown): Finding {
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

/** A part of the examination in a process of its own: should it get stuck in the kernel, only that process does. */
class Run {
  readonly #name: string;
  readonly #part: Part;
  readonly #collector: Collector;
  #step = '';
  #done = false;

  constructor(name: string, part: Part, collector: Collector) {
    this.#name = name;
    this.#part = part;
    this.#collector = collector;
  }

  async inProcess(
    command: readonly string[],
    options: Options,
    onSlow: (doing: string) => void,
  ): Promise<void> {
    const [program = '', ...before] = command;
    const args = [...before, 'doctor', '--part', this.#name];
    if (options.lockDirectory !== undefined) args.push(`--lock-dir=${options.lockDirectory}`);
    const notice = setTimeout(() => onSlow(this.#step || `looking at the ${this.#name}`), NOTICE);
    const outcome = await new Promise<string | null>((resolve) => {
      const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
      const giveUp = () => {
        // It may not die from that, so nobody waits for it.
        child.kill('SIGKILL');
        child.stdout.destroy();
        child.stderr.destroy();
        child.unref();
        resolve('hangs');
      };
      let timer = setTimeout(giveUp, START_PATIENCE);
      let lines = '';
      let errors = '';
      child.stdout.setEncoding('utf8').on('data', (text: string) => {
        clearTimeout(timer);
        timer = setTimeout(giveUp, this.#part.patience);
        lines += text;
        const complete = lines.split('\n');
        lines = complete.pop() ?? '';
        for (const line of complete) this.#receive(line);
      });
      child.stderr.setEncoding('utf8').on('data', (text: string) => {
        errors = (errors + text).slice(-4_000);
      });
      child.once('error', (error) => {
        clearTimeout(timer);
        resolve(`${error.message}`);
      });
      child.once('close', (code, signal) => {
        clearTimeout(timer);
        // What a library of the driver, or the simulator, has to say.
        if (this.#done && errors !== '') process.stderr.write(errors);
        resolve(this.#done ? null : `${errors.trim() || `it ended with ${signal ?? `exit code ${code}`}`}`);
      });
    });
    clearTimeout(notice);
    const { subject, patience } = this.#part;
    if (outcome === 'hangs') {
      this.#collector.add(
        finding(
          'check-hangs',
          `No answer within ${patience / 1000} s${this.#step === '' ? '' : ` while ${this.#step}`}. Claims will hang there as well.`,
          'A device or file system (a network disk?) has failed: see `dmesg`.',
          subject,
        ),
      );
    } else if (outcome !== null && /^spawn /.test(outcome)) {
      // No process is to be had (ulimit -u): better without that protection than not at all.
      await guarded(subject, this.#collector, (report) => this.#part.run(report, options));
    } else if (outcome !== null) {
      const while_ = this.#step === '' ? '' : `, while ${this.#step}`;
      this.#collector.add(
        failure(subject, new GPUOwnerError('ERR_INTERNAL', sanitize(outcome, 1_000) + while_)),
      );
    }
  }

  #receive(line: string): void {
    let message: Message;
    try {
      message = JSON.parse(line) as Message;
    } catch {
      return; // not ours: a library of the driver's prints as well
    }
    if (typeof message !== 'object' || message === null) return;
    if ('finding' in message) this.#collector.add(message.finding);
    else if ('facts' in message) Object.assign(this.#collector.facts, message.facts);
    else if ('step' in message) this.#step = message.step;
    else if ('done' in message) this.#done = true;
  }
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
