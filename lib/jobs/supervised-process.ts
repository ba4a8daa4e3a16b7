import { readlinkSync, writeSync } from 'node:fs';
import { Socket } from 'node:net';
import { constants } from 'node:os';
import { simulatedVariables } from '../config/index.ts';
import { errorCode, ifPossible } from '../errors.ts';
import { label } from '../gpus/index.ts';
import { errno, native, nativeFile, nativeProgram } from '../native.ts';
import { schema, systemError, warnOnce } from '../platform/index.ts';
import { changesTo, INHERITED, KEEPER, parseInherited } from './inherited.ts';
import { type SupervisedTask, taskArguments } from './keeper.ts';
import { adoptOrphans, endOrphans, reap, registerChild, waitForEnd } from './reaper.ts';

/** How a command ended. Nothing of it is left then. */
export type Outcome =
  | { kind: 'exited'; code: number }
  | { kind: 'killed'; signal: string }
  /** The command never ran; `text` says why: 'not found'. `ofKeeper`: a part of gpu-owner is to blame. */
  | { kind: 'not-started'; errno: number; text: string; ofKeeper?: boolean }
  /** The keeper was killed, and the command was ended for that. */
  | { kind: 'lost'; text: string };

const NUMBER = schema.optional(schema.whole());
const EVENT = schema.jsonOf(
  schema.record({
    event: schema.text,
    pid: NUMBER,
    code: NUMBER,
    signal: NUMBER,
    errno: NUMBER,
    text: schema.optional(schema.text),
    count: NUMBER,
    processes: schema.optional(schema.listOf(schema.record({ pid: schema.whole(), name: schema.text }))),
  }),
);
type Event = schema.Checked<typeof EVENT>;

/** Interval of SIGCONT to processes that should never be stopped, in ms. */
const HEARTBEAT_MS = 2_000;

/** How long a watchdog may take to follow its keeper, in ms. */
const WATCHDOG_END_TIMEOUT_MS = 300;

/** Keepers of commands that are under way; null: not known yet. */
const keepers = new Map<Supervised, number | null>();

/** Starts a command under a keeper of its own, without blocking. Where that can't be done, its outcome says so. */
export function supervise(supervising: SupervisedTask): Supervised {
  adoptOrphans();
  const { control: first, descriptors, args } = taskArguments(supervising);
  const env = { ...supervising.env };
  delete env[INHERITED];
  Object.assign(env, simulatedVariables(env));
  const { error, pid, control } = native().processStart(
    nativeProgram(KEEPER),
    args,
    changesTo(env),
    parseInherited(process.env[INHERITED]).dropped,
    supervising.output,
    first,
    descriptors,
  );
  if (error === 0) return new Supervised(pid, control, supervising.claim);
  // The keeper is given the command's arguments and environment.
  const text =
    error === errno.E2BIG
      ? 'its arguments and environment are too long (an argument may have 128 KiB); put long data into a file'
      : `gpu-owner's own ${nativeFile(KEEPER)} can't be started: ${systemError(error)}`;
  const ofKeeper = error === errno.E2BIG ? {} : { ofKeeper: true };
  return new Supervised(null, -1, supervising.claim, {
    kind: 'not-started',
    errno: error,
    text,
    ...ofKeeper,
  });
}

/** The worker's side of a keeper and its watchdog. */
export class Supervised {
  /** Never rejected. Resolves when no process of the command is left. */
  readonly ended: Promise<Outcome>;
  /** Processes that were left when the command had ended, and were ended: how many, and names of some. */
  leftBehind: { count: number; names: string[] } | null = null;
  /** Whether another process had it ended: a batch system that sent SIGTERM to all processes of its job. */
  wasToldToEnd = false;
  /** Whether its deadline has passed while it ran, or before. */
  hasExpired = false;
  readonly #watchdog: number;
  readonly #descriptor: number;
  #control: Socket | null = null;
  #watchdogGone = false;
  #outcome: Outcome | null;
  #keeperLost = false;
  #released = false;

  /** @param watchdog null: nothing was started, and this is the outcome */
  constructor(
    watchdog: number | null,
    control: number,
    claim: SupervisedTask['claim'],
    outcome: Outcome | null = null,
  ) {
    this.#watchdog = watchdog ?? -1;
    this.#descriptor = control;
    this.#outcome = outcome;
    this.ended = watchdog === null && outcome !== null ? Promise.resolve(outcome) : this.#follow(claim);
  }

  async #follow(claim: SupervisedTask['claim']): Promise<Outcome> {
    registerChild(this.#watchdog);
    keepers.set(this, null);
    const socket = new Socket({ fd: this.#descriptor, readable: true, writable: false });
    this.#control = socket;
    let text = '';
    socket.setEncoding('utf8').on('data', (chunk: string) => {
      const lines = (text + chunk).split('\n');
      text = lines.pop() ?? '';
      for (const line of lines) this.#on(EVENT(line, 'event'), claim);
    });
    socket.on('error', () => {}); // the end follows
    const heartbeat = setInterval(() => this.#wake(), HEARTBEAT_MS).unref();
    await new Promise((resolve) => socket.once('close', resolve));
    clearInterval(heartbeat);
    return this.#finish();
  }

  /** Moves its deadline, in ms since boot. */
  moveDeadline(at: number): void {
    this.#ask('deadline', Math.floor(at));
  }

  /** SIGTERM to all of the command's processes, SIGKILL after a grace. May be repeated to make that sooner. */
  terminate(grace: number): void {
    if (this.#control !== null) this.#wake();
    this.#ask('terminate', Math.max(0, Math.round(grace)));
  }

  /** Not by the socket's own write: if the other end has closed, a failed write takes away what hasn't been read, how the command ended. */
  #ask(what: string, value: number): void {
    if (this.#control?.destroyed !== false) return;
    try {
      writeSync(this.#descriptor, `{"${what}":${value}}\n`);
    } catch (error) {
      // The keeper is stopped, and is continued with each heartbeat. Otherwise it is gone, and the end follows.
      if (errorCode(error) === 'EAGAIN') setTimeout(() => this.#ask(what, value), HEARTBEAT_MS).unref();
    }
  }

  #on(event: Event, claim: SupervisedTask['claim']): void {
    switch (event.event) {
      case 'keeper':
        keepers.set(this, event.pid ?? null);
        break;
      case 'failed':
        this.#outcome = { kind: 'not-started', errno: event.errno ?? 0, text: event.text ?? '' };
        break;
      case 'ended':
        // After the keeper was lost it says how we ended it.
        if (!this.#keeperLost) this.#outcome = outcomeOf(event);
        break;
      case 'survivors':
        this.leftBehind ??= {
          count: event.count ?? 0,
          names: (event.processes ?? []).map(({ pid, name }) => `${pid} (${name})`),
        };
        break;
      case 'expired':
        this.hasExpired = true;
        break;
      case 'told':
        this.wasToldToEnd = true;
        break;
      case 'keeper-lost':
        this.#keeperLost = true;
        break;
      case 'removed':
        warnOnce(
          `the lease file of GPU ${claim.gpus.map(label).join(', ')} was removed while in use: others see that it is leased, but no longer ` +
            "by whom. Exclude gpu-owner's lock directory from programs that clean up files, and don't delete files there.",
        );
        break;
      case 'released':
        this.#released = true;
        // A watchdog that is stopped would keep its copies of the descriptors.
        setTimeout(() => this.#dismiss(), WATCHDOG_END_TIMEOUT_MS).unref();
    }
  }

  /** Continues keeper and watchdog: stopped by mistake, they would stop this worker for good. */
  #wake(): void {
    this.#watchdogGone ||= reap(this.#watchdog);
    const keeper = keepers.get(this) ?? null;
    if (!this.#watchdogGone) signal(this.#watchdog, 'SIGCONT');
    else if (keeper !== null) signal(keeper, 'SIGCONT'); // the keeper is our child by now, and not collected
  }

  #dismiss(): void {
    this.#watchdogGone ||= reap(this.#watchdog);
    if (!this.#watchdogGone) signal(this.#watchdog, 'SIGKILL');
  }

  /** The other end is closed, so keeper and watchdog are ending, if they haven't ended. */
  async #finish(): Promise<Outcome> {
    const keeper = keepers.get(this) ?? null;
    while (!this.#watchdogGone && !(await waitForEnd(this.#watchdog, WATCHDOG_END_TIMEOUT_MS)))
      signal(this.#watchdog, 'SIGKILL');
    // Without a watchdog it fell to us.
    if (keeper !== null) await waitForEnd(keeper, WATCHDOG_END_TIMEOUT_MS);
    keepers.delete(this);
    if (!this.#released) await endOrphans(isKeeper);
    return this.#outcome ?? { kind: 'lost', text: 'the process that kept it was killed' };
  }
}

/** Whether it keeps a command that is under way, which it does also without its watchdog. */
function isKeeper(pid: number): boolean {
  const known = [...keepers.values()];
  if (known.includes(pid)) return true;
  if (!known.includes(null)) return false;
  // The keeper of one of them isn't known yet.
  const program = ifPossible(() => readlinkSync(`/proc/${pid}/exe`), '');
  // Deleted: the package was upgraded since.
  return /\/gpu-owner-keeper(?: \(deleted\))?$/.test(program);
}

function signal(pid: number, name: NodeJS.Signals): void {
  ifPossible(() => process.kill(pid, name), false); // the process may have ended
}

const SIGNALS = new Map<number, string>(
  Object.entries(constants.signals).map(([name, number]) => [number, name]),
);

function outcomeOf({ code, signal }: Event): Outcome {
  if (signal !== undefined) return { kind: 'killed', signal: SIGNALS.get(signal) ?? `signal ${signal}` };
  return { kind: 'exited', code: code ?? 0 };
}
