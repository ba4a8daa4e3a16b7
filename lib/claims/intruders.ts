// Processes that compute on a GPU without a claim of it: the GPU isn't leased, or others have leased it.
import {
  computePids,
  describeListedProcess,
  type GPU,
  isDivided,
  isMPSServer,
  type LeaseInfo,
  label,
} from '../gpus/index.ts';
import { lineage, MAX_USER_NAME_LENGTH, type ProcessDescription, sanitize } from '../platform/index.ts';
import { PLACEHOLDER } from './placeholder.ts';

type LeasedGPU = Pick<GPU, 'uuid'> & { lease: LeaseInfo | null; shares?: readonly LeaseInfo[] };

const MAX_ANCESTORS = 100;
/** The name of a placeholder's process: the kernel keeps 15 characters. */
const PLACEHOLDER_PROCESS = PLACEHOLDER.slice(0, 15);

/** A process that computes on a GPU without a claim of it. */
interface Intruder {
  pid: number;
  who: ProcessDescription;
}

/** The GPUs by the processes that hold their leases. Other conventions, and other hosts, have processes that tell nothing here. */
class LeaseHolders {
  readonly #gpus = new Map<number, LeasedGPU[]>();

  constructor(gpus: readonly LeasedGPU[]) {
    for (const gpu of gpus) {
      for (const { pid, convention, stranger } of leasesOf(gpu)) {
        if (pid === null || stranger === true || convention !== 'gpu-owner') continue;
        this.#gpus.set(pid, [...(this.#gpus.get(pid) ?? []), gpu]);
      }
    }
  }

  /**
   * The GPUs of the lease that a process belongs to, which doesn't have this one; null: it belongs to the lease of this one, to
   * none, or it isn't known. A process belongs to all leases above it: jobs start others inside of them.
   */
  leasedElsewhere(pid: number, { uuid }: LeasedGPU): LeasedGPU[] | null {
    let found: LeasedGPU[] | null = null;
    for (const at of lineage(pid, MAX_ANCESTORS)) {
      const own = this.#gpus.get(at);
      if (own?.some((gpu) => gpu.uuid === uuid)) return null;
      found ??= own ?? null;
    }
    return found;
  }
}

function leasesOf({ lease, shares = [] }: LeasedGPU): LeaseInfo[] {
  const leases: LeaseInfo[] = [...shares];
  for (let each = lease ?? undefined; each !== undefined; each = each.nested) leases.push(each);
  return leases;
}

/**
 * Whether a process that computes on a GPU is there without a claim. On a leased GPU, that is one of another lease, or another
 * user's. A container's processes can be root's, whichever user started it, and the driver may list them by numbers that mean
 * nothing here.
 */
function isIntruder(gpu: LeasedGPU, pid: number, who: ProcessDescription, holders: LeaseHolders): boolean {
  const { lease } = gpu;
  if (who.alive === 'dying' || isMPSServer(who)) return false;
  if (lease === null) return true;
  const isKnown = who.uid !== null && who.uid !== 0 && lease.uid !== null;
  if (isKnown && who.uid !== lease.uid) return true;
  // A sweep's placeholder is a child of `exp run`, which may just hold another GPU in its own name.
  if (who.name === PLACEHOLDER_PROCESS && who.uid === lease.uid) return false;
  return who.alive === 'alive' && who.name !== null && holders.leasedElsewhere(pid, gpu) !== null;
}

/**
 * The processes on each GPU that compute there without a claim of it; on a divided GPU, its instances have them.
 * @param ofShares the processes of the shares' jobs, by the UUID of the GPU
 */
export function findIntruders<Leased extends GPU & LeasedGPU>(
  gpus: readonly Leased[],
  ofShares: ReadonlyMap<string, ReadonlySet<number>>,
): { gpu: Leased; pids: readonly number[]; text: string | null }[] {
  const holders = new LeaseHolders(gpus);
  return gpus.map((gpu) => {
    const found = intrudersOn(gpu, holders, ofShares.get(gpu.uuid));
    return { gpu, pids: found.map(({ pid }) => pid), text: intrudersText(gpu, found, gpus, holders) };
  });
}

function intrudersOn(
  gpu: GPU & LeasedGPU,
  holders: LeaseHolders,
  ofShares: ReadonlySet<number> | undefined,
): Intruder[] {
  if (isDivided(gpu)) return [];
  return [...new Set(computePids(gpu))].flatMap((pid) => {
    const who = describeListedProcess(pid);
    return ofShares?.has(pid) !== true && isIntruder(gpu, pid, who, holders) ? [{ pid, who }] : [];
  });
}

/** The intruders on a leased GPU in words; null: there is none. The state of other GPUs tells them. */
function intrudersText(
  gpu: LeasedGPU,
  found: readonly Intruder[],
  gpus: readonly GPU[],
  holders: LeaseHolders,
): string | null {
  const [first] = found;
  if (first === undefined || leasesOf(gpu).length === 0) return null;
  const { pid, who } = first;
  const user = sanitize(who.user, MAX_USER_NAME_LENGTH);
  const name = `${sanitize(who.name, 32) || 'a process'} (pid ${pid}${user ? `, ${user}` : ''})`;
  const own = (holders.leasedElsewhere(pid, gpu) ?? []).map(({ uuid }) =>
    gpus.find((each) => each.uuid === uuid),
  );
  const numbers = own.flatMap((each) => (each === undefined ? [] : [label(each)]));
  const whose = numbers.length === 0 ? '' : `, which has leased GPU ${numbers.join(', ')},`;
  const more = found.length > 1 ? ` and ${found.length - 1} more` : '';
  const compute = found.length > 1 ? 'compute' : 'computes';
  return `${name}${whose}${more} ${compute} on it without a claim`;
}
