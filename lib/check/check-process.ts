import { GPUOwnerError } from '../errors.ts';
import { isRunnable, sanitize } from '../platform/index.ts';
import {
  type Finding,
  type FindingCollector,
  failure,
  finding,
  guarded,
  type Report,
  type Subject,
} from './finding.ts';
import { messageIn, Subprocess } from './subprocess.ts';

/** A check. Any can hang in the kernel, so each runs in a process of its own. */
export interface Check {
  /** The subject of findings about the check itself. */
  subject: Subject;
  /** The limit for any step of it. */
  timeoutMs: number;
  run: (report: Report) => Promise<void> | void;
}

/** A line of JSON that such a process prints. */
export type Message = { begun: true } | { finding: Finding } | { step: string } | { done: true };

/** Time after which slow steps are named. */
const NOTICE_MS = 3_000;
/** To be started, on a machine that is overloaded. */
const START_TIMEOUT_MS = 15_000;
/** For a check that hangs nowhere: it computes, or a busy machine gives it no processor. */
const MAX_BUSY_MS = 30_000;
const MAX_ERRORS = 4_000;

/** A check in a process of its own: should it get stuck in the kernel, only that process does. */
export class CheckProcess {
  readonly #name: string;
  readonly #check: Check;
  readonly #collector: FindingCollector;
  #step = '';
  #done = false;

  constructor(name: string, check: Check, collector: FindingCollector) {
    this.#name = name;
    this.#check = check;
    this.#collector = collector;
  }

  /** Resolves when it is done, or has been given up on; never rejects. */
  async run(command: readonly string[], onSlow: (doing: string) => void): Promise<void> {
    const notice = setTimeout(() => onSlow(this.#step || `looking at the ${this.#name}`), NOTICE_MS);
    const words = [...command, 'doctor', '--part', this.#name];
    // In this session: Ctrl-C ends it.
    const child = new Subprocess(words, { hasSession: false });
    const hangs = await this.#listen(child);
    clearTimeout(notice);
    if (hangs || this.#done) await child.abandon();
    const { subject, timeoutMs } = this.#check;
    if (hangs) {
      this.#collector.add(
        finding(
          'check-hangs',
          `No answer within ${timeoutMs / 1000} s${this.#step === '' ? '' : ` while ${this.#step}`}. Claims hang there, too.`,
          'A device or a file system (a network disk?) has failed: see `dmesg`.',
          subject,
        ),
      );
      return;
    }
    if (this.#done) {
      // Messages of a library of the driver, or of the simulator.
      process.stderr.write(child.errors.slice(-MAX_ERRORS));
      return;
    }
    const { code, signal, stderr, startError } = await child.ended;
    if (startError !== null) {
      // No process is to be had (ulimit -u): better without that protection than not at all.
      await guarded(subject, this.#collector, (report) => this.#check.run(report));
      return;
    }
    const outcome = stderr.slice(-MAX_ERRORS).trim() || `it ended with ${signal ?? `exit code ${code}`}`;
    const when = this.#step === '' ? '' : `, while ${this.#step}`;
    this.#collector.add(failure(subject, new GPUOwnerError('ERR_INTERNAL', sanitize(outcome, 1_000) + when)));
  }

  /** @returns whether it says nothing, and isn't busy either */
  async #listen(child: Subprocess): Promise<boolean> {
    let limit = START_TIMEOUT_MS;
    let busyUntil = Number.POSITIVE_INFINITY;
    while (!this.#done) {
      const line = await child.line(limit);
      limit = this.#check.timeoutMs;
      if (line !== null) {
        busyUntil = Number.POSITIVE_INFINITY;
        this.#receive(messageIn<Message>(line));
      } else {
        if (child.isOver) return false;
        const time = performance.now();
        busyUntil = Math.min(busyUntil, time + MAX_BUSY_MS);
        if (time >= busyUntil || !isRunnable(child.pid)) return true;
      }
    }
    // A thread that is stuck in the driver may keep it from ending.
    return false;
  }

  #receive(message: Message | null): void {
    if (message === null) return;
    if ('finding' in message) this.#collector.add(message.finding);
    else if ('step' in message) this.#step = message.step;
    else if ('done' in message) this.#done = true;
  }
}
