import type { NormalizedCriteria } from '../config/index.ts';
import type { ProcessDescription } from '../platform/index.ts';
import type { LeaseInfo, Readings, Share, ShownGPU } from '../shapes/index.ts';

export type { GPUProcess, LeaseInfo, MIGInstance, Share } from '../shapes/index.ts';

/**
 * A GPU as the driver described it, or about a MIG instance of one, at one moment. null: the driver can't tell (never 0 for
 * that). An instance has health, bus, temperature and display of its GPU; its power and utilization are not known.
 */
export interface GPU extends Readings {
  health: 'ok' | 'lost' | 'reset-required' | 'no-permission' | 'not-responding' | 'unhealthy' | 'failed';
  /** Words for a person, where health is not ok. */
  healthReason: string | null;
  /** Used since the driver was loaded; missing: the driver doesn't tell, or wasn't asked. */
  energyJoules?: number;
  /** Errors of the memory since the last reset that ECC could not correct; missing: the driver doesn't tell. */
  memoryErrors?: number;
}

/** The numbers of a GPU that its driver measures: each is in recordings of machines. */
export type Measured = Exclude<
  {
    [Key in keyof Required<GPU>]: Required<GPU>[Key] extends number | null ? Key : never;
  }[keyof GPU],
  'index' | 'instance'
>;

/** The memory of a GPU as shares divide it, and what a request wants of it. In units of 256 MiB. */
export interface Sharing {
  shares: Share[];
  taken: number;
  /** Another program has locked more of the lease file than shares do. */
  isDamaged?: true;
  /** The memory that can be shared; null: the driver doesn't tell. */
  capacity: number | null;
  /** The processes of the shares' jobs. */
  pids: ReadonlySet<number>;
  /** The share that is asked for; null: the GPU as a whole. */
  wanted: number | null;
}

/** The units of a GPU that are left for shares. */
export interface Room {
  room: number;
  /** So many units all shares may have: programs without a claim use the rest of the memory. */
  limit: number;
}

/** shared: shares of it are leased. */
export type GPUState = Verdict['state'] | 'shared';

/**
 * A state as people read it. A GPU that is kept for a booking is leased only for scripts, which know no other word; a suspect one is
 * free for them.
 */
export function shownState({
  state,
  suspect,
  lease,
  booking,
}: Pick<ShownGPU, 'suspect' | 'lease' | 'booking'> & { state: GPUState }): GPUState | 'booked' | 'suspect' {
  if (state === 'free' && suspect !== null) return 'suspect';
  const isBooked = state === 'leased' && lease === null && booking !== null;
  return isBooked && Date.parse(booking.from) <= Date.now() ? 'booked' : state;
}

/** The judgement of whether a GPU is free. */
export interface Verdict {
  /** unavailable: it can't be had as it is, however long one waits; excluded: it may not be had. */
  state: 'free' | 'leased' | 'busy' | 'unavailable' | 'excluded';
  /** Words a person can act on; null when free, unless CUDA failed there lately. */
  reason: string | null;
  /** CUDA has just failed there for this process, which leaves it out until then, on the monotonic clock. */
  retryAt?: number;
  /** The environment hides it. */
  isHidden?: true;
  /** The driver doesn't answer for it at present; it may yet. */
  silent?: true;
  /** The room for the share that is asked for, also where it isn't enough. */
  room?: Room;
  /** The slot of the waiter ahead to whom the GPU is left, though it is free. */
  keptFor?: number;
  /** The GPU is booked by others, until then, so that this claimant can't have it. In ms since 1970. */
  bookedUntil?: number;
  /** The GPU is free, but the user holds too many: these. */
  ownLeases?: readonly string[];
  /** All that is in the way may be the remains of a process that has just died: worth another look in a moment. */
  transient: boolean;
}

/** The memory of a GPU is divided into units of this size. */
export const SHARE_UNIT_BYTES = 256 * 1024 ** 2;

export interface JudgeContext {
  /** The holder of the GPU, under whichever convention; null: it has none. */
  lease: LeaseInfo | null;
  /** UUIDs that an inherited CUDA_VISIBLE_DEVICES allows; null: all. */
  visible: ReadonlySet<string> | null;
  criteria: NormalizedCriteria;
  /** Tells a process's name and user, and whether it lives; without it every process counts as living. */
  describe?: ((pid: number) => ProcessDescription) | undefined;
  /** PIDs of the claimant itself: what they use is no obstacle. */
  ownPids?: ReadonlySet<number> | undefined;
  /** The GPU belongs to the job in which the claimant runs: so do the processes that use it, and only explicit thresholds count. */
  ofOwnJob?: boolean | undefined;
  /** The shares of the GPU, and the one that is asked for; missing: there are none, and a whole GPU is. */
  sharing?: Sharing | undefined;
  /** The GPUs are lent by Windows, which draws on them without being seen. */
  wsl?: boolean | undefined;
  /** The name of this machine; a lease's host is only told where it is another one. */
  hostname?: string | undefined;
  now?: number | undefined;
}
