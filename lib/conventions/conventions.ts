import {
  CONVENTIONS,
  type ConventionChoice,
  type ConventionName,
  parseConventions,
} from '../config/index.ts';
import type { GPU, LeaseInfo } from '../gpus/index.ts';
import { isDirectory, listWords, statusOf, type Waiting } from '../platform/index.ts';
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

/** A convention and whether it is used here, for `doctor`. */
interface ConventionInUse {
  name: ConventionName;
  active: boolean;
  /** Words: why it is used, or why not. */
  why: string;
  /** The tool's directories, whether or not they exist. */
  paths: string[];
  /** Words: which of them are symbolic links, and so don't count; null: none is. */
  ignored: string | null;
}

/** Resolves a choice on this machine at present. @throws ERR_INVALID_ARGUMENT for unknown names */
export function conventionsInUse(choice: 'auto' | readonly string[]): ConventionInUse[] {
  const chosen = parseConventions(choice, 'conventions');
  return CONVENTIONS.map((name) => {
    const paths = ALL[name].directories();
    const ignored = ignoredLinks(paths);
    return { name, paths, ignored, ...whether(name, paths, chosen, ignored) };
  });
}

/** As {@link conventionsInUse}, the active ones alone. */
function activeOnes(choice: ConventionChoice): Convention[] {
  if (choice !== 'auto') return choice.map((name) => ALL[name]);
  const root = interopRoot();
  return CONVENTIONS.map((name) => ALL[name]).filter(
    (convention) => convention.name === 'safe-gpu' || convention.directories(root).some(isDirectory),
  );
}

/** As {@link ConventionInUse.ignored}. */
function ignoredLinks(paths: string[]): string | null {
  const links = paths.filter((path) => statusOf(path)?.kind === 'link');
  if (links.length === 0) return null;
  const what = links.length === 1 ? "is a symbolic link, which isn't" : "are symbolic links, which aren't";
  return `${listWords(links)} ${what} followed`;
}

function whether(
  name: ConventionName,
  paths: string[],
  chosen: ConventionChoice,
  ignored: string | null,
): { active: boolean; why: string } {
  if (chosen !== 'auto') {
    const active = chosen.includes(name);
    return { active, why: active ? 'it was asked for' : 'it was not asked for' };
  }
  if (name === 'safe-gpu') return { active: true, why: 'it is always honoured' };
  const there = paths.filter(isDirectory);
  const existing = there.filter((path) => ALL[name].untrustedOwnerAt(path) === null);
  if (existing.length === 0 && there.length > 0) {
    return {
      active: false,
      why: listWords(there.map((path) => `${path} belongs to ${ALL[name].untrustedOwnerAt(path)}`)),
    };
  }
  return existing.length > 0
    ? { active: true, why: `${listWords(existing)} ${existing.length === 1 ? 'exists' : 'exist'}` }
    : {
        active: false,
        why: ignored ?? `${paths.length === 1 ? "its directory doesn't" : "its directories don't"} exist`,
      };
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
        const entry = yield* convention.enter(claimant);
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
