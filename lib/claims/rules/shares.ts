import { SHARE_UNIT_BYTES } from '../../gpus/index.ts';

/** How much of a GPU's memory is asked for. */
export type ShareSize = { bytes: number } | { percent: number };

/** The units of a share. @param capacity those of the GPU */
export function unitsOf(size: ShareSize, capacity: number): number {
  return 'bytes' in size
    ? Math.max(1, Math.ceil(size.bytes / SHARE_UNIT_BYTES))
    : Math.max(1, Math.floor((capacity * size.percent) / 100));
}

/** A GPU with the units that are left of it. */
interface Room {
  room: number;
}

/**
 * Chooses the GPUs for shares: those with the least sufficient room, so that others stay whole; null: too few GPUs have enough room.
 * @param fitting all have enough room; of two with the same room, the first is chosen
 */
export function bestFit<GPU extends Room>(fitting: readonly GPU[], count: number): GPU[] | null {
  if (fitting.length < count) return null;
  return [...fitting].sort((a, b) => a.room - b.room).slice(0, count);
}

/** A GPU whose memory is divided, or could be. In units. */
export interface DividedGPU {
  uuid: string;
  capacity: number;
  /** The units that shares have; a GPU that is leased as a whole isn't divided. */
  taken: number;
}

/** A request ahead in the queue. `memory`: the share of each GPU; missing: whole GPUs. */
interface RequestAhead {
  slot: number;
  count: number;
  uuids: readonly string[];
  scope: string | null;
  memory?: ShareSize;
}

/** Units that are kept for requests ahead, and the first of these. */
interface Kept<Request> {
  units: number;
  by: Request;
}

/**
 * Decides what of divided GPUs is kept for the requests ahead: for each request that doesn't find enough GPUs, of those that would do
 * the GPUs with the least memory taken. As nothing more starts there, they come free, and which GPUs are kept changes only for better ones.
 */
export function keepRoom<Request extends RequestAhead>(
  gpus: readonly DividedGPU[],
  scope: string | null,
  ahead: Iterable<Request>,
): Map<string, Kept<Request>> {
  const kept = new Map<string, Kept<Request>>();
  const takenOf = ({ uuid, taken }: DividedGPU) => taken + (kept.get(uuid)?.units ?? 0);
  for (const request of ahead) {
    if (request.scope !== scope) continue;
    const needs = ({ capacity }: DividedGPU) =>
      request.memory === undefined ? capacity : unitsOf(request.memory, capacity);
    const usable = gpus
      .filter((gpu) => request.uuids.includes(gpu.uuid) && needs(gpu) <= gpu.capacity)
      .sort(
        (a, b) =>
          takenOf(a) + needs(a) - a.capacity - (takenOf(b) + needs(b) - b.capacity) ||
          (a.uuid < b.uuid ? -1 : 1),
      );
    for (const gpu of usable.slice(0, request.count)) {
      const before = kept.get(gpu.uuid);
      kept.set(gpu.uuid, { units: (before?.units ?? 0) + needs(gpu), by: before?.by ?? request });
    }
  }
  return kept;
}
