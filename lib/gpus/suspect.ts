import { formatSince } from '../platform/index.ts';
import { cudaFailed } from './cuda-codes.ts';

/** A user's last experience with CUDA on a GPU. */
export interface CudaNote {
  uid: number;
  uuid: string;
  /** CUDA's code, or {@link CUDA_HANGS}; 0: it works again. */
  code: number;
  /** When CUDA failed there for the first time, and the last time, in ms since 1970. */
  since: number;
  at: number;
}

/** A GPU on which CUDA failed lately. */
export interface Suspect {
  code: number;
  since: number;
  at: number;
  /** The users who saw it. */
  uids: readonly number[];
  /** Whether the user who asks takes it last. */
  isCounted: boolean;
}

/** How long a failure counts, in ms. */
export const SUSPECT_MS = 3_600_000;

/** How many users other than root are believed about a GPU by others. */
const MIN_WITNESSES = 2;

/**
 * The GPUs on which CUDA failed, by UUID. Each user believes itself, and root, and two others: so none takes a GPU from all.
 * @param uid the user who asks @param now as `Date.now()`
 */
export function suspectsIn(notes: readonly CudaNote[], uid: number, now: number): Map<string, Suspect> {
  const suspects = new Map<string, Suspect>();
  const recent = notes.filter(({ at }) => at <= now && now - at < SUSPECT_MS);
  for (const uuid of new Set(recent.map((note) => note.uuid))) {
    const about = recent.filter((note) => note.uuid === uuid);
    const worked = Math.max(...about.map(({ code, at }) => (code === 0 ? at : 0)));
    // A success outdates the failures of other users, and one's own failure says more than the success of others.
    const failures = about.filter((note) => note.code !== 0 && (note.at > worked || note.uid === uid));
    if (failures.length === 0) continue;
    const last = failures.reduce((a, b) => (b.at > a.at ? b : a));
    const uids = [...new Set(failures.map((note) => note.uid))].sort((a, b) => a - b);
    const isCounted = uids.includes(uid) || uids.includes(0) || uids.length >= MIN_WITNESSES;
    const since = Math.min(...failures.map((note) => note.since));
    suspects.set(uuid, { code: last.code, since, at: last.at, uids, isCounted });
  }
  return suspects;
}

/** 'suspect: CUDA failed with 999 (CUDA_ERROR_UNKNOWN) at 12:03', or 'suspect: CUDA did not answer in time at 12:03' */
export function describeSuspect({ code, at }: Pick<Suspect, 'code' | 'at'>): string {
  return `suspect: ${cudaFailed(code)} at ${formatSince(at)}`;
}
