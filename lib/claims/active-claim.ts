import { awaitWriters, isIntact } from '../conventions/index.ts';
import { GPUOwnerError, type GPUReason } from '../errors.ts';
import {
  applyEnvironment,
  computePids,
  cudaFailed,
  describeListedProcess,
  describeSuspect,
  explainCudaCode,
  formatVisibleDevices,
  type GPU,
  isMPSServer,
  label,
  restoreEnvironment,
  type ShownGPUs,
  type VisibleDevicesVariables,
} from '../gpus/index.ts';
import type { PlaceholderFailure } from '../native.ts';
import { formatBytes, isNewMessage, now, sleep, usageError, warn } from '../platform/index.ts';
import type { UsageLine } from '../usage/index.ts';
import { type Claim, claim, releaseClaim } from './claim.ts';
import { scopeOf } from './evaluate.ts';
import {
  type Awaiting,
  awaiting,
  type ClaimSteps,
  type Effect,
  leaveOut,
  noteCUDA,
  removeOldJobFiles,
  runAsync,
  sharingOf,
  takeInAgain,
  takeSnapshot,
  traceStep,
} from './locks/index.ts';
import type { Settings } from './options.ts';
import { gpusToBlame } from './placeholder.ts';
import { activeWaiters, readWaiters } from './queue/index.ts';
import { listReasons } from './refusal.ts';
import { beginUsage, energySince } from './usage.ts';
import { claimAtOnce, claimWhenFree, endOf, isDriverAway, type WaitOptions } from './wait.ts';

/** How often a claim is tried again when a program without a claim came in between. */
const MAX_CONFLICTS = 5;

/** How old a snapshot may be, in ms, that needs no other one. */
const FRESH_SNAPSHOT_MS = 20;

/** When to look again at processes that can't be told from what the driver hasn't forgotten yet, in ms. */
const REMAINS_POLLS_MS = [20, 100, 300, 600];

/** A CUDA context of a claim's own on its GPUs, so that tools that only look at the driver see them as taken. */
export interface ContextHolder {
  /** The process that has it. */
  readonly pid: number;
  /** A process that has tried the GPUs before, and ended; null, missing: none has. */
  readonly triedBy?: number | null;
  isOn(gpu: GPU): boolean;
  /** Blocks until it has the GPUs; missing: it has them. @throws ERR_PLACEHOLDER */
  awaitReady?(): void;
  end(): void;
}

/** How a claim's GPUs are shown to the program that will use them, and to others who look at the driver. */
interface ActivationOptions<Holder extends ContextHolder, Step = Effect> {
  /** Whether the environment of this process shows them; otherwise {@link ActiveClaim.variables} is for others. */
  ownEnvironment: boolean;
  /** null: these GPUs have none. @throws ERR_PLACEHOLDER */
  startPlaceholder(claim: ActiveClaim<Holder>): ClaimSteps<Holder | null, Step>;
}

/** GPUs that are leased, shown to the program that will use them, and visibly taken. */
export class ActiveClaim<Holder extends ContextHolder> {
  readonly claim: Claim;
  readonly settings: Settings;
  /** May be ended and replaced while the GPUs are held. */
  placeholder: Holder | null = null;
  /** The line of these leases in the ledger of usage; null: there is none. */
  usage: UsageLine | null = null;
  #variables: VisibleDevicesVariables = { CUDA_VISIBLE_DEVICES: '' };
  readonly #share: ShownGPUs;

  private constructor(claim: Claim, settings: Settings) {
    this.claim = claim;
    this.settings = settings;
    this.#share = { gpus: claim.gpus, all: claim.all, as: settings.visibleDevices };
  }

  /**
   * Claims GPUs and shows them. If a program without a claim came in between, or the driver went away, it gives them back and
   * tries again.
   *
   * @param take claims the GPUs; after a conflict with that
   * @throws what `take` throws, ERR_PLACEHOLDER, ERR_GPU_UNAVAILABLE after too many conflicts; nothing is held then
   */
  static *take<Holder extends ContextHolder, Step>(
    settings: Settings,
    take: (conflict: GPUOwnerError | null) => ClaimSteps<Claim, Step>,
    { ownEnvironment, startPlaceholder }: ActivationOptions<Holder, Step>,
  ): ClaimSteps<ActiveClaim<Holder>, Step | Effect> {
    let conflict: GPUOwnerError | null = null;
    for (let conflicts = 0; conflicts <= MAX_CONFLICTS; conflicts++) {
      const claim: Claim = yield* take(conflict);
      tellSuspects(claim);
      const active: ActiveClaim<Holder> = new ActiveClaim(claim, settings);
      let isKept = false;
      try {
        active.#setVariables(ownEnvironment);
        traceStep('environment');
        try {
          active.placeholder = yield* startPlaceholder(active);
          yield* awaitWriters(claim.marks); // CUDA starts meanwhile
          active.placeholder?.awaitReady?.();
        } catch (error) {
          if (!(error instanceof GPUOwnerError)) throw error;
          const failed = leaveOutFailed(claim, error);
          if (!failed && !(yield* isDriverAway())) throw error;
          // Each GPU fails once.
          if (failed) conflicts--;
          conflict = error;
          continue;
        }
        traceStep('placeholder');
        active.#noteSuccess();
        claim.entry.leave(); // now others see it on the GPUs
        conflict = active.#findOverwrittenMarks() ?? (yield* active.#findNewProcesses());
        if (conflict === null) {
          traceStep('claimed');
          if (claim.jobFile !== null && settings.request.isJob) removeOldJobFiles(claim.directory);
          active.usage = beginUsage(claim);
          isKept = true;
          return active;
        }
      } finally {
        if (!isKept) active.release();
      }
    }
    throw conflict;
  }

  get gpus(): readonly GPU[] {
    return this.claim.gpus;
  }

  /** The share of each GPU's memory, of several the smallest; null: all of it. */
  get shareBytes(): number | null {
    const bytes = Math.min(...this.claim.leases.map((lease) => lease.shareBytes ?? Number.POSITIVE_INFINITY));
    return Number.isFinite(bytes) ? bytes : null;
  }

  /** Variables that show the GPUs to CUDA. */
  get variables(): VisibleDevicesVariables {
    return this.#variables;
  }

  /** Gives everything back. */
  release(): void {
    this.placeholder?.end();
    this.placeholder = null;
    restoreEnvironment(this.#share);
    releaseClaim(this.claim);
    this.usage?.end(); // asks the driver, when the GPUs are free already
  }

  /** From now on this process notes in the ledger of usage that the leases last, and their end. */
  keepUsage(): void {
    this.usage?.keep(() => energySince(this.claim));
  }

  /** Whether another compute process on the GPUs is a conflict. */
  get #excludesProcesses(): boolean {
    const { allowProcesses, force } = this.settings.request.criteria;
    return !allowProcesses && !force && this.claim.job === null;
  }

  /** Whether a waiter of another process could use one of the GPUs. Takes nothing. */
  othersWait(): boolean {
    const { directory, job, leases } = this.claim;
    const ours = new Set(
      this.gpus.flatMap(({ uuid, parent }) => (parent === null ? [uuid] : [uuid, parent])),
    );
    const scope = scopeOf(job);
    const { pid, host } = leases[0]?.record ?? {};
    for (const waiter of activeWaiters(readWaiters(directory))) {
      if (waiter.scope !== scope || (waiter.info.pid === pid && waiter.info.host === host)) continue;
      if (waiter.uuids.some((uuid) => ours.has(uuid))) return true;
    }
    return false;
  }

  /**
   * The problem with these GPUs for which their program can't be blamed: another program is on them, or one has failed. To be
   * asked when the program isn't running. null: nothing.
   */
  async foreignUse(): Promise<string | null> {
    for (let looks = 0; ; looks++) {
      const { reason, isCertain } = await runAsync(this.#findForeignUse());
      const pause = REMAINS_POLLS_MS[looks];
      if (reason === null || isCertain || pause === undefined) return reason;
      await sleep(pause);
    }
  }

  *#findForeignUse(): ClaimSteps<{ reason: string | null; isCertain: boolean }> {
    const seen = yield* takeSnapshot(this.gpus.map(({ index }) => index));
    let uncertain: string | null = null;
    for (const gpu of this.gpus) {
      const now =
        seen.find(({ uuid }) => uuid === gpu.uuid) ??
        seen.find(
          ({ index, instance, uuid }) => index === gpu.index && instance === gpu.instance && uuid === '',
        );
      if (now === undefined)
        return { reason: `GPU ${label(gpu)} isn't listed by the driver any longer`, isCertain: true };
      // An unhealthy one was forced, or the next claim skips it.
      if (now.health !== 'ok' && now.health !== 'unhealthy') {
        return { reason: `GPU ${label(gpu)} has failed: ${now.healthReason ?? now.health}`, isCertain: true };
      }
      if (!this.#excludesProcesses) continue;
      for (const pid of this.#unclaimedProcessesOn(now, gpu)) {
        const { alive } = describeListedProcess(pid);
        if (alive === 'dying') continue;
        const reason = `${describeUnclaimedProcess(pid)} uses the claimed GPU ${label(gpu)} without a claim of its own`;
        if (alive === 'alive') return { reason, isCertain: true };
        uncertain ??= reason; // perhaps our own command, which the driver hasn't forgotten yet
      }
    }
    return { reason: uncertain, isCertain: false };
  }

  /** CUDA works on these GPUs, also where it failed before. */
  #noteSuccess(): void {
    const { suspects, directory } = this.claim;
    for (const gpu of this.gpus) {
      if (this.placeholder?.isOn(gpu) !== true) continue;
      takeInAgain(gpu.uuid);
      if (suspects.has(gpu.uuid)) noteCUDA(directory, gpu, null);
    }
  }

  #setVariables(ownEnvironment: boolean): void {
    const { gpus, as, all } = this.#share;
    this.#variables = ownEnvironment
      ? { CUDA_VISIBLE_DEVICES: applyEnvironment(this.#share) }
      : formatVisibleDevices(gpus, as, all);
  }

  /** Whether a mark of ours was replaced: by a program that had looked before and wrote after us. Then it will use the GPU. */
  #findOverwrittenMarks(): GPUOwnerError | null {
    const { marks, gpus } = this.claim;
    const lost = marks.filter((mark) => !isIntact(mark));
    if (lost.length === 0) return null;
    return conflictError(
      'another program locked these GPUs during the claim',
      lost.map(({ uuid, directory, name }) => ({
        index: gpus.find((gpu) => gpu.uuid === uuid)?.index ?? -1,
        uuid,
        reason: `another program replaced ${directory.pathOf(name)} during the claim`,
      })),
    );
  }

  /** @throws ERR_INVALID_ARGUMENT for a share in which a CUDA context has no room */
  *#findNewProcesses(): ClaimSteps<GPUOwnerError | null> {
    if (!this.#excludesProcesses && !this.#mayBeTooSmall) return null;
    // Without a placeholder nothing took time since the look under the lock, as a rule: then that was the last one.
    if (this.placeholder === null && now() - this.claim.seenAt < FRESH_SNAPSHOT_MS) return null;
    const seen = yield* takeSnapshot(this.gpus.map(({ index }) => index));
    for (const gpu of seen) this.#refuseTooSmall(gpu);
    if (!this.#excludesProcesses) return null;
    const reasons = this.gpus.flatMap((gpu) => {
      const after = seen.find(({ uuid }) => uuid === gpu.uuid);
      const [unclaimed] = after === undefined ? [] : this.#unclaimedProcessesOn(after, gpu);
      if (unclaimed === undefined) return [];
      const reason = `${describeUnclaimedProcess(unclaimed)} started on it while it was being claimed`;
      return [{ index: gpu.index, instance: gpu.instance, uuid: gpu.uuid, reason }];
    });
    return reasons.length === 0
      ? null
      : conflictError('programs without a claim started on these GPUs during the claim', reasons);
  }

  /** Whether the claim is a share in which a placeholder shows what a context takes. */
  get #mayBeTooSmall(): boolean {
    return this.settings.request.memory !== undefined && this.placeholder !== null;
  }

  #refuseTooSmall(gpu: GPU): void {
    const { placeholder } = this;
    const bytes = this.claim.leases.find(({ uuid }) => uuid === gpu.uuid)?.shareBytes ?? null;
    if (bytes === null || placeholder === null) return;
    const context = gpu.processes?.find(({ pid }) => pid === placeholder.pid)?.usedBytes ?? 0;
    if (context <= bytes) return;
    throw usageError(
      `${this.settings.request.criteria.names.memory ?? 'memory'}: ${formatBytes(bytes)} is less than a CUDA context alone takes on GPU ${label(gpu)}, which is ${formatBytes(context)}. Ask for more.`,
    );
  }

  /**
   * Compute processes on a GPU that neither were there before nor are the placeholder. In a container the driver may call that by
   * another number: then one new process that isn't known here is taken for it.
   */
  #unclaimedProcessesOn(gpu: GPU, before: GPU): number[] {
    const { placeholder } = this;
    const expected = placeholder?.isOn(before) ? [placeholder.pid] : [];
    const { directory, job } = this.claim;
    const { memory } = this.settings.request;
    const sharing = memory === undefined ? undefined : sharingOf(directory, gpu, { job, memory });
    const known = new Set([
      ...expected,
      placeholder?.triedBy,
      ...computePids(before),
      ...(sharing?.pids ?? []),
    ]);
    const present = computePids(gpu);
    // Our own placeholder may have made the MPS control daemon start a server.
    const unclaimed = present.filter((pid) => !known.has(pid) && !isMPSServer(describeListedProcess(pid)));
    const isRenumbered = expected.length > 0 && !present.some((pid) => expected.includes(pid));
    return isRenumbered ? unclaimed.slice(1) : unclaimed;
  }
}

/** Says so where a claim takes GPUs on which CUDA failed lately. */
function tellSuspects({ gpus, suspects }: Claim): void {
  for (const gpu of gpus) {
    const suspect = suspects.get(gpu.uuid);
    if (suspect?.isCounted !== true) continue;
    warn(`GPU ${label(gpu)} is tried again, as no other will do (${describeSuspect(suspect)}).`);
  }
}

/** Notes the GPUs on which CUDA failed for a claim, so that the next attempt takes others. @returns whether it did on any */
function leaveOutFailed({ gpus, all, directory }: Claim, error: GPUOwnerError): boolean {
  const failed = gpusToBlame(error, gpus, all);
  for (const gpu of failed) {
    const failure = error.cause as PlaceholderFailure;
    leaveOut(directory, gpu, failure, error);
    const { code, stage } = failure;
    const { cause } = explainCudaCode(code);
    const text = `${cudaFailed(code, stage)}: ${cause}`;
    const subject = `GPU ${label(gpu)} is left out`;
    if (isNewMessage(subject, text)) warn(`${subject}: ${text}. \`gpu-owner doctor\` says what helps.`);
  }
  return failed.length > 0;
}

function describeUnclaimedProcess(pid: number): string {
  const { name, user, alive } = describeListedProcess(pid);
  const who = name ?? (alive === 'gone' ? "a process that isn't visible here" : 'a process');
  return `${who} (pid ${pid}${user ? `, ${user}` : ''})`;
}

function conflictError(what: string, gpus: GPUReason[]): GPUOwnerError {
  return new GPUOwnerError('ERR_GPU_UNAVAILABLE', `${what}${listReasons(gpus)}`, { gpus });
}

/**
 * Claims GPUs for commands, without blocking.
 *
 * @param wait null: don't wait for GPUs to become free
 * @param activation as {@link ActivationOptions}, with a promise
 * @throws as {@link ActiveClaim.take}, ERR_TIMEOUT, ERR_ABORTED; nothing is held then
 */
export function claimForCommands<Holder extends ContextHolder>(
  settings: Settings,
  wait: WaitOptions | null,
  activation: {
    ownEnvironment: boolean;
    startPlaceholder: (claim: ActiveClaim<Holder>) => Promise<Holder | null>;
  },
): Promise<ActiveClaim<Holder>> {
  const { request } = settings;
  const idle = wait?.handover?.received?.rest ?? null;
  const end = idle === null ? endOf(wait?.maxWait ?? null) : (idle.end ?? Number.POSITIVE_INFINITY);
  function* take(conflict: GPUOwnerError | null): ClaimSteps<Claim, Effect | Awaiting> {
    if (wait === null) return yield* claimAtOnce(request);
    // A job in the background was checked when it was submitted.
    const wasThere = conflict !== null || request.about?.job !== undefined;
    if (wait.handover?.received || wasThere)
      return yield* awaiting(() => claimWhenFree(request, { ...wait, wasThere }, undefined, end));
    const first = yield* claim(request);
    return first.granted ? first : yield* awaiting(() => claimWhenFree(request, wait, first, end));
  }
  const { ownEnvironment } = activation;
  const startPlaceholder = (claim: ActiveClaim<Holder>) => awaiting(() => activation.startPlaceholder(claim));
  const taking = ActiveClaim.take(settings, take, { ownEnvironment, startPlaceholder });
  // With an environment of its own, this process is about to become the command, and does nothing else.
  return runAsync(taking, wait?.signal, ownEnvironment);
}
