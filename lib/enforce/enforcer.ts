import { checkOptions, type LockDirectory, leaseName, PREFERRED } from '../claims/index.ts';
import { DEFAULT_ENFORCE_RULES, type EnforceRules, loadConfiguration } from '../config/index.ts';
import { errorCode, GPUOwnerError } from '../errors.ts';
import {
  bootMilliseconds,
  formatDuration,
  isRoot,
  machineUid,
  sanitize,
  sleep,
  systemError,
  TIMEOUTS,
  userName,
} from '../platform/index.ts';
import { observeGPUs } from '../status/index.ts';
import { type Action, type ActionKind, type Cases, decideActions } from './cases.ts';
import { HeldProcess } from './held-process.ts';
import { type Offence, Watch } from './sightings.ts';
import { readCases, writeCases } from './state.ts';
import { runNotifyCommand, writeToTerminals } from './warning.ts';

const SIGNALS: Partial<Record<ActionKind, [number: number, name: string]>> = {
  terminate: [15, 'SIGTERM'],
  kill: [9, 'SIGKILL'],
};
const ESRCH = 3;
/** Until the next look, after a process of a user whose grace is over was found. */
const AGAIN_MS = 1_000;

/** Looks at all GPUs again and again, and deals with programs that compute where they may not. */
export class Enforcer {
  /** undefined: the configuration has none, which makes it a dry run */
  #rules: EnforceRules | undefined;
  readonly #isAlwaysDry: boolean;
  readonly #request: ReturnType<typeof checkOptions>['request'];
  readonly #log: (line: string) => void;
  readonly #watch: Watch;
  #cases: Cases = {};
  #mistake = '';
  #saveFailure = '';
  #missed: string | null = null;
  /** When such a process was last found, in ms since boot: in looks far from each other, those that follow it would never be seen twice. */
  #foundAt = Number.NEGATIVE_INFINITY;
  /** The user who could remove lease files, and have processes of their holders ended; null: only root can. */
  #remover: number | null = null;

  /**
   * @param log takes a line for each action
   * @throws ERR_CONFIGURATION, ERR_NOT_PERMITTED, ERR_SYSTEM
   */
  constructor(isDryRun: boolean, log: (line: string) => void) {
    this.#rules = loadConfiguration().enforce;
    const isRoot = machineUid() === 0;
    this.#isAlwaysDry = isDryRun || !isRoot;
    if (!isRoot && !isDryRun && this.hasRules)
      throw new GPUOwnerError(
        'ERR_NOT_PERMITTED',
        `${userName(process.geteuid?.() ?? 0)} may not end others' processes: only root runs enforce. To see what it would do: \`gpu-owner enforce --dry-run\`.`,
      );
    if (!HeldProcess.isSupported)
      throw new GPUOwnerError(
        'ERR_SYSTEM',
        'this kernel has no pidfd_open (Linux 5.3), so a signal could reach the wrong process. Use a newer kernel.',
      );
    this.#request = checkOptions({}).request;
    this.#log = log;
    this.#watch = new Watch(this.#rules ?? DEFAULT_ENFORCE_RULES);
    if (!this.isDryRun) this.#cases = readCases();
  }

  get isDryRun(): boolean {
    return this.#isAlwaysDry || !this.hasRules || this.#remover !== null;
  }

  /** Whether the configuration has `enforce`. */
  get hasRules(): boolean {
    return this.#rules !== undefined;
  }

  /** Reads the configuration again; after a mistake in it, the rules stay. */
  #readRules(): void {
    try {
      const rules = loadConfiguration().enforce;
      this.#mistake = '';
      if (JSON.stringify(rules) === JSON.stringify(this.#rules)) return;
      const wasDry = this.isDryRun;
      this.#rules = rules;
      this.#watch.rules = rules ?? DEFAULT_ENFORCE_RULES;
      // A dry run has done nothing.
      if (wasDry !== this.isDryRun) this.#cases = wasDry ? readCases() : {};
      this.#log(`the configuration has changed${this.isDryRun ? '; this is a dry run' : ''}`);
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      if (this.#mistake !== error.message)
        this.#log(`the rules stay as they were: ${sanitize(error.message, 500)}`);
      this.#mistake = error.message;
    }
  }

  /** Returns when the signal comes. */
  async run(signal: AbortSignal): Promise<void> {
    let failure = '';
    while (!signal.aborted) {
      this.#readRules();
      try {
        await this.look();
        failure = '';
      } catch (error) {
        if (!(error instanceof GPUOwnerError)) throw error;
        // The driver may be away for an update.
        if (failure !== error.message) this.#log(`can't look at the GPUs: ${sanitize(error.message, 500)}`);
        failure = error.message;
      }
      const isSoon = bootMilliseconds() - this.#foundAt < TIMEOUTS.enforceKill;
      await sleep(isSoon ? Math.min(AGAIN_MS, TIMEOUTS.enforceLook) : TIMEOUTS.enforceLook, signal);
    }
    this.#watch.release();
  }

  async look(): Promise<void> {
    const began = bootMilliseconds();
    const { gpus, directory } = await observeGPUs(this.#request, 'machine');
    this.#checkOwner(directory);
    // No user can remove root's files, and claim what another user has leased.
    if (!this.isDryRun) for (const { uuid } of gpus) if (uuid !== '') directory?.makeRoots(leaseName(uuid));
    const offences = this.#watch.look(gpus, directory, began, this.#cases);
    this.#tellMissed();
    const times = { graceMs: this.#watch.rules.graceMs, killMs: TIMEOUTS.enforceKill };
    const { cases, actions } = decideActions(this.#cases, offences, bootMilliseconds(), times);
    for (const action of actions) this.#perform(action);
    if (actions.some(({ leftMs }) => leftMs === 0)) this.#foundAt = bootMilliseconds();
    this.#cases = cases;
    if (!this.isDryRun) this.#save();
  }

  /** The owner of the lock directory can remove leased files and claim these GPUs: the first holder would be the intruder then. */
  #checkOwner(directory: LockDirectory | null): void {
    const owner = directory?.owner ?? null;
    const remover = owner === null || isRoot(owner) ? null : owner;
    if (remover === this.#remover) return;
    const wasDry = this.isDryRun;
    this.#remover = remover;
    if (wasDry !== this.isDryRun) this.#cases = wasDry ? readCases() : {};
    if (remover !== null && !wasDry)
      this.#log(
        `the lock directory ${directory?.path} belongs to ${userName(remover)}, who can remove leases of others: this is a dry run. Use a directory of root's: \`install -d -m 1777 -o root -g root ${PREFERRED}\`.`,
      );
    if (remover === null && !this.isDryRun)
      this.#log('the lock directory belongs to root: processes are ended');
  }

  #tellMissed(): void {
    const { missed } = this.#watch;
    if (missed !== null && missed !== this.#missed)
      this.#log(
        `${missed} has too many open files to search for leases: this user's processes get no signal. End it, or lower the user's limit of open files (ulimit -Hn).`,
      );
    this.#missed = missed;
  }

  /** Without a file it goes on: a user who fills the file system must not stop it. */
  #save(): void {
    let failure = '';
    try {
      writeCases(this.#cases);
    } catch (error) {
      failure = `can't write the state (${errorCode(error)}): after a restart of enforce, users are warned again. Make room in /run.`;
    }
    if (failure !== '' && failure !== this.#saveFailure) this.#log(failure);
    this.#saveFailure = failure;
  }

  #perform({ kind, sighting, leftMs }: Action<Offence>): void {
    const { held, user, name, gpu, holder } = sighting;
    const process = `${sanitize(name, 32)} (pid ${held.pid}, ${sanitize(user, 256)})`;
    const why = `computes on GPU ${gpu}, which ${holder === null ? 'it has not claimed' : `is leased by ${sanitize(holder, 256)}`}`;
    const [number, signalName] = SIGNALS[kind] ?? [];
    if (number === undefined) {
      const then = leftMs === 0 ? 'at once' : `in ${formatDuration(leftMs)}`;
      this.#say('warned', 'would warn', `${process} ${why}: SIGTERM ${then}`);
      if (!this.isDryRun)
        this.#warn(sighting, `${process} ${why}. It will be ended ${then}. Use \`gpu-owner run\`.`);
      return;
    }
    const error = this.isDryRun ? 0 : held.signal(number);
    if (error === -ESRCH) return; // the process has ended by itself
    if (error !== 0) this.#log(`can't send ${signalName} to ${process}: ${systemError(-error)}`);
    else this.#say(`sent ${signalName} to`, `would send ${signalName} to`, `${process}, which ${why}`);
  }

  #say(done: string, planned: string, what: string): void {
    this.#log(`${this.isDryRun ? planned : done} ${what}`);
  }

  #warn({ uid, gid, user }: Offence, text: string): void {
    writeToTerminals(uid, `gpu-owner: ${text}`);
    try {
      runNotifyCommand({ uid, gid, user }, 'warned', text, (why) =>
        this.#log(`notifyCommand of the configuration failed for ${user}: ${why}`),
      );
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      this.#log(error.message);
    }
  }
}
