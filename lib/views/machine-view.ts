// A machine as it is now and was in the last minute, for displays, as long as a user watches: one look at the driver per
// interval, however many watch.
import type { DiscoveryRequest } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { describeListedProcess, isDivided } from '../gpus/index.ts';
import { type Job, listJobs } from '../jobs/index.ts';
import { native } from '../native.ts';
import { isoTime, now, processCommand, sleep } from '../platform/index.ts';
import type { QueueEntry, ShownProcess, Snapshot } from '../shapes/index.ts';
import { gpuJSON, type Observation, observe } from '../status/index.ts';

/** A machine at one moment, without the jobs of its user. */
export type MachineSnapshot = Omit<Snapshot, 'jobs' | 'problem'>;

/** A GPU at one look. Shares from 0 to 1; null: unknown. */
export interface GPUSample {
  /** ms on the clock of `Date.now()`. */
  at: number;
  utilization: number | null;
  memory: number | null;
}

/** A machine, as far as it is known. */
export interface MachineState {
  /** null: this one. */
  host: string | null;
  /** The last one that was had; null: none yet. */
  snapshot: MachineSnapshot | null;
  /** Why there is no newer one, in words; null: it is current. */
  problem: string | null;
  history: History;
  /** The jobs of this user, as in `jobs --json`. */
  jobs: readonly Job[];
}

/** Machines to show. */
export interface LiveView {
  readonly machines: readonly MachineState[];
  stop(): void;
}

/** Upper bound on the requests read: a screen has no room for more. */
const MAX_QUEUE_ENTRIES = 200;
const MINUTE_MS = 60_000;
/** A snapshot usually takes microseconds. After this time, viewers learn that the driver doesn't answer. */
const LATE_MS = 2_000;
const JOBS_INTERVAL_MS = 2_000;
/** As the driver lists them; a machine has some dozens. */
const MAX_PROCESSES = 500;

/** The last minute of each GPU. */
export class History {
  readonly #samples = new Map<string, GPUSample[]>();

  add({ time, gpus }: MachineSnapshot): void {
    const at = Date.parse(time);
    for (const { uuid, utilizationPercent, memory } of gpus) {
      const before = (this.#samples.get(uuid) ?? []).filter((sample) => sample.at > at - MINUTE_MS);
      const share =
        memory.usedBytes !== null && memory.totalBytes ? memory.usedBytes / memory.totalBytes : null;
      const sample = {
        at,
        utilization: utilizationPercent === null ? null : utilizationPercent / 100,
        memory: share,
      };
      this.#samples.set(uuid, [...before, sample]);
    }
    for (const uuid of this.#samples.keys()) {
      if (!gpus.some((gpu) => gpu.uuid === uuid)) this.#samples.delete(uuid);
    }
  }

  /** From the oldest to the newest. */
  of(uuid: string): readonly GPUSample[] {
    return this.#samples.get(uuid) ?? [];
  }
}

/** This machine, looked at until it is stopped. */
export class MachineView implements LiveView, MachineState {
  readonly host = null;
  readonly machines = [this];
  readonly history = new History();
  readonly #request: DiscoveryRequest;
  readonly #end = new AbortController();
  #snapshot: MachineSnapshot | null = null;
  #failure: GPUOwnerError | null = null;
  /** When the look that is under way began; null: none is. */
  #lookSince: number | null = null;
  #jobs: Job[] = [];
  #nextJobs = 0;

  /** @param hasProcessUse whether the driver is asked how much each process computes: one call more per GPU */
  constructor(request: DiscoveryRequest, hasProcessUse = false) {
    this.#request = request;
    if (hasProcessUse) native().driverReadProcessUse(true);
  }

  /** Looks once per interval. @param onLook called after each look @returns when it is stopped */
  async watch(intervalMs: number, onLook: () => void): Promise<void> {
    const { signal } = this.#end;
    while (!signal.aborted) {
      const begin = now();
      await this.look();
      if (!signal.aborted) onLook();
      await sleep(Math.max(intervalMs / 2, intervalMs - (now() - begin)), signal);
    }
  }

  /** Looks once. Errors that have a cause on the machine become {@link problem}. @throws such an error at the first look */
  async look(): Promise<void> {
    this.#lookSince = now();
    try {
      this.#snapshot = await takeSnapshot(this.#request);
      this.#failure = null;
      this.history.add(this.#snapshot);
    } catch (error) {
      if (!(error instanceof GPUOwnerError)) throw error;
      this.#failure = error;
      if (this.#snapshot === null) throw error;
    } finally {
      this.#lookSince = null;
    }
  }

  get snapshot(): MachineSnapshot | null {
    return this.#snapshot;
  }

  /** How the last look failed. */
  get failure(): GPUOwnerError | null {
    return this.#failure;
  }

  get problem(): string | null {
    const late = this.#lookSince === null ? 0 : now() - this.#lookSince;
    if (late > LATE_MS) return `the driver has not answered for ${Math.floor(late / 1_000)} s`;
    return this.#failure?.message ?? null;
  }

  get jobs(): readonly Job[] {
    const begin = now();
    if (begin >= this.#nextJobs) {
      const { queue = [], waiting = 0 } = this.#snapshot ?? {};
      // A snapshot has the beginning of a long queue only.
      this.#jobs = ownJobs(this.#request.lockDirectory, queue.length === waiting ? queue : []);
      this.#nextJobs = begin + JOBS_INTERVAL_MS;
    }
    return this.#jobs;
  }

  stop(): void {
    this.#end.abort();
  }
}

/** None where a file of theirs can't be read: `jobs` says why. */
function ownJobs(lockDirectory: string | undefined, queue: readonly QueueEntry[]): Job[] {
  try {
    return listJobs({ user: null, all: false, lockDirectory, queue });
  } catch (error) {
    if (error instanceof GPUOwnerError) return [];
    throw error;
  }
}

/** Makes snapshots. @throws as `getGPUs` */
async function takeSnapshot(request: DiscoveryRequest): Promise<MachineSnapshot> {
  const time = isoTime();
  const observation = await observe(request, MAX_QUEUE_ENTRIES);
  const { queue, waiting } = observation;
  const processes = processesOn(observation);
  return {
    time,
    gpus: observation.gpus.map(gpuJSON),
    queue,
    waiting,
    intruders: processes
      .filter(({ isIntruder }) => isIntruder)
      .map(({ uuid, pid, name, user, uid, usedBytes }) => ({ uuid, pid, name, user, uid, usedBytes })),
    processes,
  };
}

function processesOn({ gpus, intruders }: Observation): ShownProcess[] {
  const found: ShownProcess[] = [];
  for (const gpu of gpus) {
    if (isDivided(gpu)) continue;
    for (const { pid, type, usedBytes, smPercent = null } of gpu.processes ?? []) {
      if (found.length >= MAX_PROCESSES) return found;
      // One that computes and draws is listed twice.
      if (type === 'graphics' && found.some((each) => each.uuid === gpu.uuid && each.pid === pid)) continue;
      const { name, user, uid } = describeListedProcess(pid);
      const command = name === null ? null : processCommand(pid);
      const isOther = type === 'compute' && intruders.get(gpu.uuid)?.includes(pid) === true;
      const where = { uuid: gpu.uuid, pid, name, user, uid, usedBytes };
      found.push({ ...where, type, command, smPercent, isIntruder: isOther });
    }
  }
  return found;
}
