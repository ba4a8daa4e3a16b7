import {
  activeWaiters,
  type Claim,
  claim,
  claimWhenFree,
  findConflictingProcesses,
  findOverwrittenMarks,
  reached,
  readWaiters,
  releaseClaim,
  removeOldJobFiles,
  runAsync,
  type Settings,
  scopeOf,
  takeSnapshot,
  unexpectedProcesses,
  type WaitOptions,
} from '../claims/index.ts';
import { describeListedProcess, formatVisibleDevices, type GPU, label } from '../gpus/index.ts';
import { warnOnce } from '../platform/index.ts';
import { admitsPlaceholder } from './job-claim.ts';
import { environmentOf, type SupervisedTask } from './keeper.ts';
import { PlaceholderProcess } from './placeholder-process.ts';
import { type Supervised, supervise } from './supervised-process.ts';

const MAX_CONFLICTS = 5;

/** How long a GPU may look free between two commands, in ms. */
const IDLE_MS = 1_000;

/** When to look again at processes that can't be told from what the driver hasn't forgotten yet, in ms. */
const REMAINS_POLLS_MS = [20, 100, 300, 600];

/**
 * GPUs leased for a worker that runs one command after the other on them. There may be several in a process: nothing of the
 * process itself is changed. Nothing of it blocks the event loop for more than moments.
 */
export class WorkerClaim {
  readonly gpus: readonly GPU[];
  readonly #claim: Claim;
  readonly #settings: Settings;
  readonly #visible: Readonly<Record<string, string>>;
  #placeholder: PlaceholderProcess | null = null;
  #starting: Promise<void> | null = null;
  #idle: NodeJS.Timeout | undefined;
  #running = 0;
  #released = false;

  private constructor(granted: Claim, settings: Settings) {
    this.gpus = granted.gpus;
    this.#claim = granted;
    this.#settings = settings;
    this.#visible = { ...formatVisibleDevices(granted.gpus, settings.visibleDevices, granted.all) };
  }

  /**
   * Claims GPUs, waiting in the queue if need be.
   * @throws what `claim` throws, ERR_TIMEOUT, ERR_ABORTED, ERR_PLACEHOLDER; nothing is held then
   */
  static async claim(settings: Settings, wait: WaitOptions): Promise<WorkerClaim> {
    const { request, configuration } = settings;
    const attempting = {
      request: { ...request, isJob: true },
      configuredDirectory: configuration.lockDirectory,
    };
    for (let intrusions = 0; ; intrusions++) {
      const first = await runAsync(claim(attempting.request, attempting.configuredDirectory), wait.signal);
      const granted = first.granted ? first : await claimWhenFree(attempting, wait, first);
      let claimed: WorkerClaim | null = null;
      try {
        claimed = new WorkerClaim(granted, settings);
        reached('environment');
        await claimed.#take();
        reached('placeholder');
        granted.entry.leave(); // now others see it on the GPUs
        const overwritten = await runAsync(findOverwrittenMarks(granted.marks, granted.gpus), wait.signal);
        const intruders = overwritten ?? (await claimed.#intruders());
        if (intruders === null) {
          reached('claimed');
          removeOldJobFiles(granted.directory);
          return claimed;
        }
        if (intrusions === MAX_CONFLICTS) throw intruders;
        claimed.release();
      } catch (error) {
        if (claimed === null) releaseClaim(granted);
        else claimed.release();
        throw error;
      }
    }
  }

  /** Variables that a command needs to find these GPUs, and to claim some of them itself. */
  get environment(): Readonly<Record<string, string>> {
    return { ...this.#visible, ...environmentOf(this.#claim) };
  }

  /** Starts a command on them; its environment is to contain {@link environment}. */
  run(supervising: Omit<SupervisedTask, 'claim'>): Supervised {
    clearTimeout(this.#idle);
    this.#running++;
    if (this.#placeholder?.commandStarted() === false) this.#placeholder = null;
    const supervised = supervise({ ...supervising, claim: this.#claim });
    void supervised.ended.then(() => {
      if (--this.#running > 0 || this.#released) return;
      this.#idle = setTimeout(() => this.#showIdle(), IDLE_MS).unref();
    });
    return supervised;
  }

  /** Whether a waiter of another process could use one of these. Takes nothing. */
  othersWait(): boolean {
    const { directory, job, leases } = this.#claim;
    const ours = new Set(
      this.gpus.flatMap(({ uuid, parent }) => (parent === null ? [uuid] : [uuid, parent])),
    );
    const scope = scopeOf(job?.generation ?? null);
    const { pid, host } = leases[0]?.record ?? {};
    for (const waiter of activeWaiters(readWaiters(directory))) {
      if (waiter.scope !== scope || (waiter.info.pid === pid && waiter.info.host === host)) continue;
      if (waiter.uuids.some((uuid) => ours.has(uuid))) return true;
    }
    return false;
  }

  /**
   * The problem with these GPUs that no command of this worker can be blamed for: somebody else is on them, or one has
   * failed. To be asked when no command runs. null: nothing.
   */
  async foreignUse(): Promise<string | null> {
    for (let looks = 0; ; looks++) {
      const { reason, certain } = await this.#look();
      const pause = REMAINS_POLLS_MS[looks];
      if (reason === null || certain || pause === undefined) return reason;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  /** Gives the GPUs back. No command may be running on them. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    clearTimeout(this.#idle);
    this.#placeholder?.end();
    this.#placeholder = null;
    releaseClaim(this.#claim);
  }

  async #look(): Promise<{ reason: string | null; certain: boolean }> {
    const { allowProcesses, force } = this.#settings.request.criteria;
    const seen = await runAsync(takeSnapshot(this.gpus.map(({ index }) => index)));
    let uncertain: string | null = null;
    for (const gpu of this.gpus) {
      const now =
        seen.find(({ uuid }) => uuid === gpu.uuid) ??
        seen.find(
          ({ index, instance, uuid }) => index === gpu.index && instance === gpu.instance && uuid === '',
        );
      if (now === undefined)
        return { reason: `GPU ${label(gpu)} isn't listed by the driver any longer`, certain: true };
      if (now.health !== 'ok') {
        return { reason: `GPU ${label(gpu)} has failed: ${now.healthReason ?? now.health}`, certain: true };
      }
      if (allowProcesses || force || this.#claim.job !== null) continue;
      for (const pid of unexpectedProcesses(now, gpu, this.#ownPids(gpu))) {
        const { name, user, alive } = describeListedProcess(pid);
        if (alive === 'dying') continue;
        const who = name ?? (alive === 'gone' ? "a process that isn't visible here" : 'a process');
        const reason = `${who} (pid ${pid}${user ? `, ${user}` : ''}) uses the claimed GPU ${label(gpu)} without a claim of its own`;
        if (alive === 'alive') return { reason, certain: true };
        uncertain ??= reason; // perhaps our own command, which the driver hasn't forgotten yet
      }
    }
    return { reason: uncertain, certain: false };
  }

  async #intruders() {
    const { gpus, job } = this.#claim;
    const { allowProcesses, force } = this.#settings.request.criteria;
    if (allowProcesses || force || job !== null) return null;
    const indices = gpus.map(({ index }) => index);
    const now = await runAsync(takeSnapshot(indices));
    return findConflictingProcesses(
      gpus,
      now.filter(({ index }) => indices.includes(index)),
      (gpu) => this.#ownPids(gpu),
    );
  }

  #ownPids(gpu: GPU): number[] {
    return this.#placeholder !== null && admitsPlaceholder(gpu) ? [this.#placeholder.pid] : [];
  }

  /** Shows that the GPUs are taken. @throws ERR_PLACEHOLDER */
  async #take(): Promise<void> {
    const { placeholder } = this.#settings;
    const shared = this.gpus.filter(admitsPlaceholder);
    if (placeholder === 'none' || shared.length === 0) return;
    const env = { ...process.env, ...this.#visible };
    const started = await PlaceholderProcess.startIdle(shared, placeholder, env);
    if (this.#released) return started.end();
    this.#placeholder = started;
    if (this.#running > 0) started.commandStarted();
  }

  /** No command has come for a while: nobody shall take the GPUs for free. */
  #showIdle(): void {
    if (this.#placeholder?.commandEnded() === true || this.#starting !== null) return;
    this.#placeholder = null;
    this.#starting = this.#take()
      .catch((error: Error) => warnOnce(error.message)) // the lease holds without it
      .finally(() => {
        this.#starting = null;
      });
  }
}
