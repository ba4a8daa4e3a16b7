/** A lease that gives way to requests that aren't preemptible. A job has one, of one GPU or several. */
export interface PreemptibleLease {
  epoch: number;
  /** When it began, in ms since 1970: the youngest gives way first. */
  since: number;
  /** All its GPUs. */
  uuids: readonly string[];
  /** The lease is giving way already. */
  isEnding: boolean;
}

/** So many leases together are looked at: there are fewer GPUs in a machine. */
const MAX_LEASES = 256;

/** Leases that give way together. */
interface Choice {
  leases: readonly PreemptibleLease[];
  /** How many GPUs they have, those that the request can't use too. */
  size: number;
}

/**
 * Decides which leases give way to a request: as few GPUs as possible, of the youngest leases, and none where that wouldn't let it start.
 * @param need how many GPUs it lacks @param usable the GPUs that it could have, if they were free
 */
export function whoGivesWay(
  need: number,
  usable: ReadonlySet<string>,
  leases: readonly PreemptibleLease[],
): PreemptibleLease[] {
  const gain = ({ uuids }: PreemptibleLease) => uuids.filter((uuid) => usable.has(uuid)).length;
  const ending = leases.filter(({ isEnding }) => isEnding).reduce((sum, lease) => sum + gain(lease), 0);
  const lacking = need - ending;
  if (lacking <= 0) return [];
  const youngestFirst = leases
    .filter((lease) => !lease.isEnding && gain(lease) > 0)
    .sort((a, b) => b.since - a.since || a.epoch - b.epoch)
    .slice(0, MAX_LEASES);
  /** For each number of GPUs up to the need: the leases of the smallest size that give at least so many. */
  let best: (Choice | null)[] = Array.from({ length: lacking + 1 }, (_, gpus) =>
    gpus === 0 ? { leases: [], size: 0 } : null,
  );
  for (const lease of youngestFirst) {
    best = best.map((present, gpus) => {
      const rest = best[Math.max(0, gpus - gain(lease))] ?? null;
      if (gpus === 0 || rest === null) return present;
      const size = rest.size + lease.uuids.length;
      // Leases are taken from the youngest on: at the same size, those that were chosen before are younger.
      return present !== null && present.size <= size ? present : { leases: [...rest.leases, lease], size };
    });
  }
  return [...(best[lacking]?.leases ?? [])];
}
