import type { GPU, LeaseInfo } from '../gpus/types.ts';
import type { Waiting } from '../waits.ts';
import type { ConventionName } from './choice.ts';
import type { Mark } from './marks.ts';
import type { placeOf } from './places.ts';

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
  /** Makes a directory where none exists, for those who asked for this convention by its name. */
  prepare(): void;
  /** Before deciding: waits for those who decide just now, and keeps others from it. */
  enter(claimant: Claimant): Waiting<Entry | null>;
  /** Who holds which GPU. Takes nothing. */
  holders(gpus: readonly GPU[], leases: Leases): Waiting<Holders>;
  /** Removes what claims of ours left behind that were killed. To be called by one claimant at a time. */
  tidy?(gpus: readonly GPU[], leases: Leases): void;
  /**
   * Shows others that a GPU is ours, whose lease we hold. Where it can't be shown, that is said and isn't an error.
   * @param all all GPUs of the machine
   * @returns what shows it, or who was quicker
   */
  mark(gpu: GPU, all: readonly GPU[], claimant: Claimant): Waiting<Mark[] | LeaseInfo>;
}
