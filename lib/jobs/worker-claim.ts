import {
  type ActiveClaim,
  claimForCommands,
  noteEnergy,
  PLACEHOLDER,
  type Settings,
  startTimeout,
  type WaitOptions,
} from '../claims/index.ts';
import type { GPU } from '../gpus/index.ts';
import { keepPrograms } from '../native.ts';
import { warnOnce } from '../platform/index.ts';
import { KEEPER } from './inherited.ts';
import type { SupervisedTask } from './keeper.ts';
import { environmentOf } from './keeper-options.ts';
import { PlaceholderProcess } from './placeholder-process.ts';
import { parsePreemption, watchPreemption } from './preemption.ts';
import { type Supervised, supervise } from './supervised-process.ts';

/** How long a GPU may look free between two commands, in ms. */
const IDLE_MS = 1_000;

/**
 * GPUs leased for a worker that runs one command after the other on them. There may be several in a process: nothing of the
 * process itself is changed. Nothing of it blocks the event loop for more than moments.
 */
export class WorkerClaim {
  readonly #shown: ActiveClaim<PlaceholderProcess>;
  #starting: Promise<void> | null = null;
  #idle: NodeJS.Timeout | undefined;
  #running = 0;
  #released = false;

  private constructor(shown: ActiveClaim<PlaceholderProcess>) {
    this.#shown = shown;
  }

  /**
   * Claims GPUs, waiting in the queue if need be.
   * @throws what `claim` throws, ERR_TIMEOUT, ERR_ABORTED, ERR_PLACEHOLDER; nothing is held then
   */
  static async claim({ request, ...settings }: Settings, wait: WaitOptions): Promise<WorkerClaim> {
    keepPrograms(KEEPER, PLACEHOLDER);
    noteEnergy();
    const forJobs = { ...settings, request: { ...request, isJob: true } };
    const shown = await claimForCommands(forJobs, wait, { ownEnvironment: false, startPlaceholder });
    shown.keepUsage();
    return new WorkerClaim(shown);
  }

  get gpus(): readonly GPU[] {
    return this.#shown.gpus;
  }

  /** The numbers of the shares of these GPUs, which no other shares of the same GPU have; null: whole GPUs. */
  get shareNumbers(): readonly number[] | null {
    const numbers = this.gpus.flatMap(
      ({ uuid }) => this.#shown.claim.leases.find((lease) => lease.uuid === uuid)?.shareNumber ?? [],
    );
    return numbers.length < this.gpus.length ? null : numbers;
  }

  /** Variables that a command needs to find these GPUs, and to claim some of them itself. */
  get environment(): Readonly<Record<string, string>> {
    return { ...this.#shown.variables, ...environmentOf(this.#shown.claim) };
  }

  /** Starts a command on them; its environment is to contain {@link environment}. */
  run(supervising: Omit<SupervisedTask, 'claim'>): Supervised {
    clearTimeout(this.#idle);
    this.#running++;
    const shown = this.#shown;
    if (shown.placeholder?.commandStarted() === false) shown.placeholder = null;
    const supervised = supervise({ ...supervising, claim: shown.claim });
    void supervised.ended.then(() => {
      if (--this.#running > 0 || this.#released) return;
      this.#idle = setTimeout(() => this.#showIdle(), IDLE_MS).unref();
    });
    return supervised;
  }

  /** As {@link ActiveClaim.othersWait}. */
  othersWait(): boolean {
    return this.#shown.othersWait();
  }

  /** As {@link ActiveClaim.foreignUse}. No command may be running on the GPUs. */
  foreignUse(): Promise<string | null> {
    return this.#shown.foreignUse();
  }

  /**
   * Calls back once, when another request needs these GPUs: with the ms that a command has to end. Only if they were claimed as preemptible.
   * @returns ends the watch
   */
  onPreemption(callback: (graceMs: number) => void): () => void {
    const { claim } = this.#shown;
    if (claim.leases[0]?.record.preemptible !== true) return () => {};
    return watchPreemption(claim, () => callback(parsePreemption(undefined, undefined).graceMs));
  }

  /** Gives the GPUs back. No command may be running on them. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    clearTimeout(this.#idle);
    this.#shown.release();
  }

  /** No command has come for a while: no tool shall take the GPUs for free. */
  #showIdle(): void {
    const shown = this.#shown;
    if (shown.placeholder?.commandEnded() === true || this.#starting !== null) return;
    shown.placeholder = null;
    this.#starting = startPlaceholder(shown)
      .then((placeholder) => {
        if (this.#released) return placeholder?.end();
        shown.placeholder = placeholder;
        if (this.#running > 0) placeholder?.commandStarted();
      })
      .catch((error: Error) => warnOnce(error.message)) // the lease holds without it
      .finally(() => {
        this.#starting = null;
      });
  }
}

function startPlaceholder(shown: ActiveClaim<PlaceholderProcess>): Promise<PlaceholderProcess | null> {
  const { gpus, settings, claim, variables } = shown;
  return PlaceholderProcess.startIdle(gpus, settings, startTimeout(gpus, claim.suspects), { ...variables });
}
