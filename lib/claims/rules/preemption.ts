/** A lease that gives way to requests that aren't preemptible. A job has one, of one GPU or several. */
export interface PreemptibleLease {
  epoch: number;
  /** When it began, in ms since 1970: the youngest gives way first. */
  since: number;
  /** All its GPUs. */
  uuids: readonly string[];
  /** A request has asked it to give way, and its grace lasts. */
  isEnding: boolean;
  /** A request has asked it to give way, and its grace is over. */
  isOverdue: boolean;
}

/** Upper bound on the leases that are combined: a machine has fewer GPUs. */
const MAX_LEASES = 256;

/** Leases that give way together. */
interface Choice<Lease> {
  leases: readonly Lease[];
  /** How many GPUs more end by that, those that the request can't use too. */
  size: number;
}

/**
 * Decides which leases give way to a request, those that are ending for it included: as few GPUs as possible, of the youngest leases, and
 * none where that wouldn't let it start. Leases that are overdue count only where there is no other choice.
 * @param need how many GPUs it lacks @param usable the GPUs that it could have, if they were free
 */
export function whoGivesWay<Lease extends PreemptibleLease>(
  need: number,
  usable: ReadonlySet<string>,
  leases: readonly Lease[],
): Lease[] {
  if (need <= 0) return [];
  const inTime = leases.filter(({ isOverdue }) => !isOverdue);
  return choose(need, usable, inTime) ?? choose(need, usable, leases) ?? [];
}

function choose<Lease extends PreemptibleLease>(
  lacking: number,
  usable: ReadonlySet<string>,
  leases: readonly Lease[],
): Lease[] | null {
  const gain = ({ uuids }: PreemptibleLease) => uuids.filter((uuid) => usable.has(uuid)).length;
  const rank = ({ isEnding, isOverdue }: PreemptibleLease) => (isEnding ? 0 : isOverdue ? 2 : 1);
  const inOrder = leases
    .filter((lease) => gain(lease) > 0)
    .sort((a, b) => rank(a) - rank(b) || b.since - a.since || a.epoch - b.epoch)
    .slice(0, MAX_LEASES);
  /** For each number of GPUs up to the need: the smallest leases that give at least this many. */
  let best: (Choice<Lease> | null)[] = Array.from({ length: lacking + 1 }, (_, gpus) =>
    gpus === 0 ? { leases: [], size: 0 } : null,
  );
  for (const lease of inOrder) {
    best = best.map((present, gpus) => {
      const rest = best[Math.max(0, gpus - gain(lease))] ?? null;
      if (gpus === 0 || rest === null) return present;
      const size = rest.size + (lease.isEnding ? 0 : lease.uuids.length);
      // Leases are taken in their order: at the same size, those that were chosen before come first.
      return present !== null && present.size <= size ? present : { leases: [...rest.leases, lease], size };
    });
  }
  const chosen = best[lacking] ?? null;
  return chosen === null ? null : [...chosen.leases];
}
