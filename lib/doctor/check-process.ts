import { spawn } from 'node:child_process';
import { GPUOwnerError } from '../errors.ts';
import { isRunnable, sanitize } from '../platform/index.ts';
import {
  type Facts,
  type Finding,
  type FindingCollector,
  failure,
  finding,
  guarded,
  type Options,
  type Report,
  type Subject,
} from './finding.ts';

/** A check. Any can hang in the kernel, so each runs in a process of its own. */
export interface Check {
  /** The subject of findings about the check itself. */
  subject: Subject;
  /** The limit for any step of it. */
  timeoutMs: number;
  run: (report: Report, options: Options) => Promise<void> | void;
}

/** A line of JSON that such a process prints. */
export type Message =
  | { begun: true }
  | { finding: Finding }
  | { step: string }
  | { facts: Facts }
  | { done: true };

/** After this time, people are told what takes so long. */
const NOTICE_MS = 3_000;
/** To be started, on a machine that is overloaded. */
const START_TIMEOUT_MS = 15_000;
/** For a check that hangs nowhere: it computes, or a busy machine gives it no processor. */
const MAX_BUSY_MS = 30_000;
/** After SIGKILL. */
const END_TIMEOUT_MS = 1_000;
const HANGS = 'hangs';

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
  async run(command: readonly string[], options: Options, onSlow: (doing: string) => void): Promise<void> {
    const [program = '', ...before] = command;
    const args = [...before, 'doctor', '--part', this.#name];
    if (options.lockDirectory !== undefined) args.push(`--lock-dir=${options.lockDirectory}`);
    const notice = setTimeout(() => onSlow(this.#step || `looking at the ${this.#name}`), NOTICE_MS);
    const outcome = await new Promise<string | null>((resolve) => {
      const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
      const end = (how: string | null) => {
        clearTimeout(timer);
        child.stdout.destroy();
        child.stderr.destroy();
        const ended = () => {
          clearTimeout(timer);
          // Messages of the driver's library, or of the simulator.
          if (how === null && errors !== '') process.stderr.write(errors);
          resolve(how);
        };
        if (child.exitCode !== null || child.signalCode !== null) return ended();
        // The child is collected, as no other process may do that. A child that doesn't die from the signal isn't waited for.
        timer = setTimeout(ended, END_TIMEOUT_MS);
        child.once('exit', ended).kill('SIGKILL');
        child.unref();
      };
      let heard = 0;
      let busyUntil = 0;
      const giveUp = () => {
        const before = heard;
        // The child may have spoken while this process itself had no processor.
        setImmediate(() => {
          if (heard !== before || child.exitCode !== null || child.signalCode !== null) return;
          const time = performance.now();
          if (busyUntil === 0) busyUntil = time + MAX_BUSY_MS;
          if (time < busyUntil && isRunnable(child.pid ?? 0))
            timer = setTimeout(giveUp, this.#check.timeoutMs);
          else end(HANGS);
        });
      };
      let timer = setTimeout(giveUp, START_TIMEOUT_MS);
      let lines = '';
      let errors = '';
      child.stdout.setEncoding('utf8').on('data', (text: string) => {
        heard++;
        busyUntil = 0;
        clearTimeout(timer);
        timer = setTimeout(giveUp, this.#check.timeoutMs);
        lines += text;
        const complete = lines.split('\n');
        lines = complete.pop() ?? '';
        for (const line of complete) this.#receive(line);
        // A thread that is stuck in the driver may keep it from ending.
        if (this.#done) end(null);
      });
      child.stderr.setEncoding('utf8').on('data', (text: string) => {
        errors = (errors + text).slice(-4_000);
      });
      child.once('error', (error) => {
        clearTimeout(timer);
        resolve(error.message);
      });
      child.once('close', (code, signal) => {
        clearTimeout(timer);
        resolve(errors.trim() || `it ended with ${signal ?? `exit code ${code}`}`);
      });
    });
    clearTimeout(notice);
    const { subject, timeoutMs } = this.#check;
    if (outcome === HANGS) {
      this.#collector.add(
        finding(
          'check-hangs',
          `No answer within ${timeoutMs / 1000} s${this.#step === '' ? '' : ` while ${this.#step}`}. Claims hang there, too.`,
          'A device or a file system (a network disk?) has failed: see `dmesg`.',
          subject,
        ),
      );
    } else if (outcome !== null && /^spawn /.test(outcome)) {
      // No process is to be had (ulimit -u): better without that protection than not at all.
      await guarded(subject, this.#collector, (report) => this.#check.run(report, options));
    } else if (outcome !== null) {
      const when = this.#step === '' ? '' : `, while ${this.#step}`;
      this.#collector.add(
        failure(subject, new GPUOwnerError('ERR_INTERNAL', sanitize(outcome, 1_000) + when)),
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
