// The last 24 hours of each GPU, in memory of a fixed size: means of five minutes. Prometheus is for longer.
import type { ShownGPU } from '../../shapes/index.ts';
import type { GPUDay } from './shapes.ts';

export const SLOT_MS = 5 * 60_000;
export const SLOTS = 288;
/** A machine has some dozens, MIG instances included; those that haven't been seen for longest make room. */
const MAX_GPUS = 256;
const UNKNOWN = 255;
/** Nothing is known of the time between snapshots that are further apart. */
const MAX_GAP_MS = 2 * 60_000;

/** A ring of means. */
class Means {
  readonly #slots = new Uint8Array(SLOTS).fill(UNKNOWN);
  #sum = 0;
  #count = 0;

  /** Clears slots of which nothing is known yet. */
  clear(first: number, last: number): void {
    for (let slot = Math.max(first, last - SLOTS + 1); slot <= last; slot++)
      this.#slots[slot % SLOTS] = UNKNOWN;
    this.#sum = 0;
    this.#count = 0;
  }

  add(slot: number, percent: number | null): void {
    if (percent === null) return;
    this.#sum += Math.min(100, Math.max(0, percent));
    this.#slots[slot % SLOTS] = Math.round(this.#sum / ++this.#count);
  }

  until(slot: number): (number | null)[] {
    return Array.from({ length: SLOTS }, (_, i) => {
      const value = this.#slots[(slot + 1 + i) % SLOTS] as number;
      return value === UNKNOWN ? null : value;
    });
  }
}

interface Track {
  gpu: ShownGPU;
  /** When it was seen first, and last. */
  first: number;
  last: number;
  /** The last slot in which it was seen. */
  seen: number;
  /** The last slot that has begun. */
  slot: number;
  utilization: Means;
  memory: Means;
  leased: Means;
  /** How long it was leased in each slot, as a ring. */
  leasedMs: Float64Array;
}

const meansOf = ({ utilization, memory, leased }: Track) => [utilization, memory, leased];

/** The last 24 hours of a machine. */
export class Day {
  /** The one that was seen last is the last. */
  readonly #tracks = new Map<string, Track>();

  /** @param at in ms, on a clock that doesn't go back */
  add(gpus: readonly ShownGPU[], at: number): void {
    const slot = slotAt(at);
    for (const gpu of gpus) {
      const track = this.#tracks.get(gpu.uuid) ?? {
        gpu,
        first: at,
        last: at,
        seen: slot,
        slot,
        utilization: new Means(),
        memory: new Means(),
        leased: new Means(),
        leasedMs: new Float64Array(SLOTS),
      };
      if (slot < track.slot) continue;
      advance(track, slot);
      const { usedBytes, totalBytes } = gpu.memory;
      track.gpu = gpu;
      track.seen = slot;
      track.utilization.add(slot, gpu.utilizationPercent);
      track.memory.add(slot, usedBytes !== null && totalBytes ? (100 * usedBytes) / totalBytes : null);
      track.leased.add(slot, holdersOf(gpu).length === 0 ? 0 : 100);
      if (at - track.last < MAX_GAP_MS)
        track.leasedMs[slot % SLOTS] =
          (track.leasedMs[slot % SLOTS] as number) + leasedMs(gpu, at - track.last);
      track.last = at;
      this.#tracks.delete(gpu.uuid);
      this.#tracks.set(gpu.uuid, track);
    }
    for (const [uuid, track] of this.#tracks) {
      if (this.#tracks.size <= MAX_GPUS && slot - track.seen < SLOTS) break;
      this.#tracks.delete(uuid);
    }
  }

  /** The GPUs that were seen in the last 24 hours, in their order. */
  read(at: number): GPUDay[] {
    const slot = slotAt(at);
    const tracks = [...this.#tracks.values()].filter((track) => slot - track.seen < SLOTS);
    for (const track of tracks) advance(track, slot);
    return tracks
      .map((track) => ({
        uuid: track.gpu.uuid,
        index: track.gpu.index,
        instance: track.gpu.instance,
        name: track.gpu.name,
        spanSeconds: Math.round(Math.min(at - track.first, SLOTS * SLOT_MS) / 1_000),
        leasedSeconds: Math.round(track.leasedMs.reduce((sum, each) => sum + each, 0) / 1_000),
        utilizationPercent: track.utilization.until(slot),
        memoryPercent: track.memory.until(slot),
        leasedPercent: track.leased.until(slot),
      }))
      .sort((a, b) => a.index - b.index || (a.instance ?? -1) - (b.instance ?? -1));
  }
}

const slotAt = (at: number) => Math.floor(at / SLOT_MS);

const holdersOf = ({ lease, shares }: ShownGPU) => (lease === null ? shares : [lease]);

/** How much of the last `ms` its present lease, or the oldest of its shares, has lasted. */
function leasedMs(gpu: ShownGPU, ms: number): number {
  const ages = holdersOf(gpu).map(({ since }) => {
    const age = Date.now() - Date.parse(since ?? '');
    return Number.isNaN(age) ? ms : Math.min(ms, age);
  });
  return Math.max(0, ...ages);
}

function advance(track: Track, slot: number): void {
  if (slot <= track.slot) return;
  for (const means of meansOf(track)) means.clear(track.slot + 1, slot);
  for (let each = Math.max(track.slot + 1, slot - SLOTS + 1); each <= slot; each++)
    track.leasedMs[each % SLOTS] = 0;
  track.slot = slot;
}
