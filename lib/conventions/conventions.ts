import { CONVENTIONS, type ConventionChoice, type ConventionName } from '../config/index.ts';
import type { GPU, LeaseInfo } from '../gpus/index.ts';
import { isDirectory, type Waiting } from '../platform/index.ts';
import {
  type Claimant,
  type Convention,
  type DecisionGuard,
  type Holders,
  type Leases,
  type Mark,
  removeMark,
} from './convention.ts';
import { GPULock } from './gpu-lock.ts';
import { GPUScheduler } from './gpu-scheduler.ts';
import { interopRoot } from './paths.ts';
import { PidFiles } from './pid-files.ts';
import { SafeGPU } from './safe-gpu.ts';

const ALL: Record<ConventionName, Convention> = {
  'safe-gpu': new SafeGPU(),
  gpu_lock: new GPULock(),
  'gpu-scheduler': new GPUScheduler(),
  'pid-files': new PidFiles(),
};

/** The conventions that are used on this machine at present. */
function activeOnes(choice: ConventionChoice): Convention[] {
  if (choice !== 'auto') return choice.map((name) => ALL[name]);
  const root = interopRoot();
  return CONVENTIONS.map((name) => ALL[name]).filter(
    (convention) => convention.name === 'safe-gpu' || convention.directories(root).some(isDirectory),
  );
}

/** Shows users of all chosen conventions that GPUs are ours. */
export class Conventions {
  readonly #choice: ConventionChoice;
  #known: readonly Convention[] | null = null;
  #entered = false;

  constructor(choice: ConventionChoice) {
    this.#choice = choice;
  }

  /** The conventions in use, determined for each decision: a tool may have come into use meanwhile. */
  get #active(): readonly Convention[] {
    this.#known ??= activeOnes(this.#choice);
    return this.#known;
  }

  /** To be called before deciding which GPUs to take; leave when that can be seen on the GPUs. */
  *enter(claimant: Claimant): Waiting<DecisionGuard> {
    if (this.#entered) this.#known = null;
    this.#entered = true;
    const entries: DecisionGuard[] = [];
    const leave = () => {
      for (const entry of entries.splice(0)) entry.leave();
    };
    try {
      for (const convention of this.#active) {
        const entry = convention.enter === undefined ? null : yield* convention.enter(claimant);
        if (entry !== null) entries.push(entry);
      }
    } catch (error) {
      leave();
      throw error;
    }
    return { leave };
  }

  #prepare(all: readonly GPU[]): void {
    const byName = this.#choice !== 'auto';
    for (const convention of byName ? this.#active : Object.values(ALL)) convention.prepare(all, byName);
    this.#known = null; // conventions whose directories have just come are used as well
  }

  /**
   * The holders of GPUs by other conventions. Takes nothing.
   * @param tidy also remove the marks of killed claims: for one claimant at a time
   */
  *holders(gpus: readonly GPU[], leases: Leases, tidy = false): Waiting<Holders> {
    const wholes = gpus.filter(isWhole);
    const holders: Holders = new Map();
    for (const convention of this.#active) {
      if (convention.holders === undefined) continue;
      for (const [uuid, holder] of yield* convention.holders(wholes, leases, tidy)) {
        if (!holders.has(uuid)) holders.set(uuid, holder);
      }
    }
    // Others know whole GPUs only.
    for (const gpu of gpus) {
      const holder = holders.get(parentOf(gpu));
      if (holder !== undefined) holders.set(gpu.uuid, holder);
    }
    return holders;
  }

  /**
   * Shows that GPUs are ours whose leases we hold: all, or none.
   * @returns the marks, or who was quicker and where
   */
  *mark(
    gpus: readonly GPU[],
    all: readonly GPU[],
    claimant: Claimant,
  ): Waiting<{ marks: Mark[] } | { marks: null; uuid: string; holder: LeaseInfo }> {
    const marks: Mark[] = [];
    const wholes = all.filter(isWhole);
    if (gpus.some(isWhole)) this.#prepare(wholes);
    try {
      for (const convention of this.#active) {
        if (convention.mark === undefined) continue;
        for (const gpu of gpus.filter(isWhole)) {
          const made = yield* convention.mark(gpu, wholes, claimant);
          if (!Array.isArray(made)) {
            for (const mark of marks) removeMark(mark);
            return { marks: null, uuid: gpu.uuid, holder: made };
          }
          marks.push(...made);
        }
      }
    } catch (error) {
      for (const mark of marks) removeMark(mark);
      throw error;
    }
    return { marks };
  }
}

/** The UUID of the whole GPU. An instance of one (MIG) names it as its parent. */
function parentOf(gpu: GPU): string {
  return gpu.parent ?? gpu.uuid;
}

function isWhole(gpu: GPU): boolean {
  return gpu.uuid !== '' && parentOf(gpu) === gpu.uuid;
}
