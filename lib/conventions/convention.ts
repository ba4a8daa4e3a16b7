import type { ConventionName } from '../config/index.ts';
import type { GPU, LeaseInfo } from '../gpus/index.ts';
import type { Waiting } from '../platform/index.ts';
import type { Mark } from './marks.ts';
import type { placeOf } from './paths.ts';

/** What is known of leases. */
export interface Leases {
  /** Whether somebody holds the lease of this GPU. */
  isLeased(uuid: string): boolean;
  /** Whether this tenure of this GPU's lease still lasts. */
  isHeld(uuid: string, generation: number): boolean;
}

/** What a claim tells the conventions. */
export interface Claimant extends Leases {
  user: string;
  /** Which tenure of leases this claim begins; no other one has this number. */
  generation: number;
  /** A line of text that all claimants of the machine share; '' where there is none yet. */
  note: { read(): string; write(text: string): void };
  /** How long to wait for somebody who doesn't move, in ms. */
  patience: number;
}

/** What keeps the others from deciding while we do. */
export interface Entry {
  /** Lets them. Does nothing the second time. */
  leave(): void;
}

/** What claims of ours left behind that were killed. */
export interface Tidying {
  /** Whether to remove it: for one claimant at a time. */
  readonly now: boolean;
  /** Whether there is some, or a trace of others that is to be noted. */
  needed: boolean;
}

/** GPUs by their UUIDs, with who holds them. */
export type Holders = Map<string, LeaseInfo>;

/**
 * How other programs lock GPUs on this machine: who holds one by that, and how we show them that we do. Nothing that lies in
 * their directories is trusted: no link is followed, nothing is waited for, nobody is signalled.
 */
export interface Convention {
  readonly name: ConventionName;
  /** Its directories, whether or not they exist. @param root see {@link placeOf} */
  directories(root?: string): string[];
  /** Whose one of its directories is, where therefore no lock in it counts; null: it may belong to whom it does. */
  strangerAt(path: string): string | null;
  /**
   * Makes its directories where they are missing, with the modes that its own programs need: these may start while our lease
   * lasts. Those of a user or a working directory are made only for who has asked for this convention by its name.
   * @param all all GPUs of the machine
   */
  prepare(all: readonly GPU[], byName: boolean): void;
  /** Before deciding: waits for those who decide just now, and keeps others from it. */
  enter(claimant: Claimant): Waiting<Entry | null>;
  /** Who holds which GPU. Takes nothing. */
  holders(gpus: readonly GPU[], leases: Leases, tidying: Tidying): Waiting<Holders>;
  /**
   * Shows others that a GPU is ours, whose lease we hold. Where it can't be shown, that is said and isn't an error.
   * @param all all GPUs of the machine
   * @returns what shows it, or who was quicker
   */
  mark(gpu: GPU, all: readonly GPU[], claimant: Claimant): Waiting<Mark[] | LeaseInfo>;
}
