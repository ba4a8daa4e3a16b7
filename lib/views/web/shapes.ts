// The records that only the web server sends.
import type { Job } from '../../shapes/index.ts';
import type { MachineSnapshot } from '../machine-view.ts';

export interface StreamMachine {
  host: string;
  /** The server's own, which has more answers, and whose jobs are named without a host. */
  isLocal: boolean;
  /** Why the snapshot is not current; null: it is. */
  problem: string | null;
  /** The last one; null: none yet. */
  snapshot: MachineSnapshot | null;
  jobs: readonly Job[];
}

/** A line of the stream: everything, not only what has changed. */
export interface StreamLine {
  /** When it was sent. */
  time: string;
  /** A line comes at least this often, unless the server hangs. */
  intervalSeconds: number;
  /** The user of the server, whose jobs are among them. */
  user: string;
  machines: readonly StreamMachine[];
}

/** A GPU; 288 slots each, from the oldest to the one that lasts still. null: unknown. */
export interface GPUDay {
  uuid: string;
  index: number;
  instance: number | null;
  name: string;
  /** Since the first snapshot of it, at most 24 hours. */
  spanSeconds: number;
  /** The part of it in which it was leased, as far as known. */
  leasedSeconds: number;
  utilizationPercent: readonly (number | null)[];
  memoryPercent: readonly (number | null)[];
  /** The share of the snapshots in which it was leased. */
  leasedPercent: readonly (number | null)[];
}

/** The last 24 hours. */
export interface HistoryAnswer {
  /** Now, in the last slot. */
  time: string;
  slotSeconds: number;
  machines: readonly { host: string; gpus: readonly GPUDay[] }[];
}

/** The last 30 days. */
export interface UsageAnswer {
  /** Such as 2026-01-31, in the server's time zone; the last one lasts still. */
  days: readonly string[];
  /** Who used GPUs, the largest sum first; none where the machine has no ledger of usage. */
  users: readonly { user: string; uid: number; gpuHours: readonly number[] }[];
}
