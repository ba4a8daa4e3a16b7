// Free of Node.js: the page of `web` uses it, too.
import type { DriverTopology } from '../native.ts';

/** How two GPUs are connected, from best to worst; as `nvidia-smi topo -m` prints it. */
export const LINK_KINDS = {
  nvlink: 'NV',
  nvswitch: 'NV',
  'pcie-switch': 'PIX',
  'pcie-switches': 'PXB',
  'host-bridge': 'PHB',
  numa: 'NODE',
  system: 'SYS',
} as const;

export type LinkKind = keyof typeof LINK_KINDS;
type PCIeKind = Exclude<LinkKind, 'nvlink' | 'nvswitch'>;

const MEANINGS: Readonly<Record<LinkKind, string>> = {
  nvlink: 'that many NVLinks',
  nvswitch: 'that many NVLinks',
  'pcie-switch': 'one PCIe switch',
  'pcie-switches': 'several PCIe switches',
  'host-bridge': 'one PCIe host bridge',
  numa: 'one NUMA node',
  system: 'across NUMA nodes',
};

/** As `nvidia-smi topo -m` prints it: NV12, PIX. '?': the driver doesn't tell. */
export function linkSign({ kind, links }: Connection = { kind: null, links: null }): string {
  return kind === null ? '?' : `${LINK_KINDS[kind]}${links ?? ''}`;
}

/** Explains the signs of some connections, the best first. */
export function linkLegend(links: readonly Connection[]): string {
  const present = new Set(links.map(({ kind }) => kind));
  const texts = (Object.keys(LINK_KINDS) as LinkKind[])
    .filter((kind) => present.has(kind))
    .map((kind) => `${LINK_KINDS[kind]}${LINK_KINDS[kind] === 'NV' ? '#' : ''}: ${MEANINGS[kind]}`);
  return [...new Set(texts)].join('; ');
}

/** The connection of two GPUs. */
export interface Connection {
  /** null: the driver doesn't tell. */
  kind: LinkKind | null;
  /** Active NVLinks; null: not connected by them. */
  links: number | null;
}

/** How the GPUs of a machine are connected: the same as long as the driver runs. */
export interface Topology {
  /** UUIDs of the whole GPUs, by NVML's index. */
  uuids: readonly string[];
  places: DriverTopology['places'];
  links: DriverTopology['links'];
}

const NUMBERS_PER_PAIR = 3;
/** What the driver doesn't tell. */
export const UNKNOWN = -1;
/** By nvmlGpuTopologyLevel_t: the same board counts as one switch. */
const LEVELS: Readonly<Record<number, PCIeKind>> = {
  0: 'pcie-switch',
  10: 'pcie-switch',
  20: 'pcie-switches',
  30: 'host-bridge',
  40: 'numa',
  50: 'system',
};

/** Whether the numbers fit the count of GPUs; another user may have written them. */
export function isTopologyOf(uuids: readonly string[], { links, places }: Omit<Topology, 'uuids'>): boolean {
  return (
    places.length === uuids.length &&
    places.every(({ cpus, nodes }) => cpus.length % 2 === 0 && nodes.length % 2 === 0) &&
    links.length === (NUMBERS_PER_PAIR * uuids.length * (uuids.length - 1)) / 2
  );
}

/** Links by which GPUs count as connected: NVLink, or one PCIe switch. */
const TOGETHER: ReadonlySet<LinkKind | null> = new Set(['nvlink', 'nvswitch', 'pcie-switch']);
/** Machines have a few such sets; where NVLinks form a net, there may be too many to try. */
const MAX_CONNECTED_SETS = 32;

/**
 * The largest sets of some GPUs in which each two are connected, of `count` or more: the best connected first, then by the order of
 * the GPUs. Sets may overlap.
 */
export function connectedSets(
  topology: Topology | null,
  uuids: readonly string[],
  count: number,
): string[][] {
  if (topology === null) return [];
  const rows = uuids.map((uuid) => topology.uuids.indexOf(uuid));
  const near = rows.map((a) => rows.map((b) => a !== b && TOGETHER.has(connectionAt(topology, a, b).kind)));
  const found: number[][] = [];
  // Bron and Kerbosch's algorithm 457: the GPU with the most others near it decides which ones begin a branch.
  const extend = (set: number[], open: number[], done: readonly number[]) => {
    if (found.length === MAX_CONNECTED_SETS || set.length + open.length < count) return;
    if (open.length === 0 && done.length === 0) found.push(set.toSorted((a, b) => a - b));
    let [pivot, most] = [-1, -1];
    for (const each of [...open, ...done]) {
      const others = open.filter((other) => near[each]?.[other]).length;
      if (others > most) [pivot, most] = [each, others];
      if (most >= open.length - 1) break;
    }
    let left = open;
    let past = done;
    for (const next of open.filter((each) => !near[pivot]?.[each])) {
      const isNear = (other: number) => near[next]?.[other] === true;
      extend([...set, next], left.filter(isNear), past.filter(isNear));
      left = left.filter((each) => each !== next);
      past = [...past, next];
    }
  };
  extend([], [...rows.keys()], []);
  const worths = worthsOf(topology, uuids);
  const worthIn = (set: readonly number[]) =>
    set.reduce((sum, a) => sum + set.reduce((part, b) => part + (worths[a * rows.length + b] ?? 0), 0), 0) /
    (set.length * (set.length - 1));
  const places = (a: readonly number[], b: readonly number[]) =>
    a.map((each, i) => each - (b[i] ?? 0)).find((difference) => difference !== 0) ?? 0;
  return found
    .map((set) => ({ set, worth: worthIn(set) }))
    .sort((a, b) => b.worth - a.worth || places(a.set, b.set))
    .map(({ set }) => set.flatMap((at) => uuids[at] ?? []));
}

/** What is near a GPU; null: the driver doesn't tell. */
export function placeOf(topology: Topology | null, uuid: string): Topology['places'][number] | null {
  return topology?.places[topology.uuids.indexOf(uuid)] ?? null;
}

/** The connection of two GPUs, by their UUIDs. */
export function connectionOf(topology: Topology, one: string, other: string): Connection {
  return connectionAt(topology, topology.uuids.indexOf(one), topology.uuids.indexOf(other));
}

/** How they are connected beside NVLinks; null: the driver doesn't tell. */
export function pcieKindOf({ uuids, links }: Topology, one: string, other: string): LinkKind | null {
  const at = positionOf(uuids.length, uuids.indexOf(one), uuids.indexOf(other));
  return LEVELS[links[at] ?? UNKNOWN] ?? null;
}

/** The same by the GPUs' places in the list; -1: it isn't there. */
function connectionAt({ uuids, links }: Topology, one: number, other: number): Connection {
  const at = positionOf(uuids.length, one, other);
  const nvlinks = links[at + 1] ?? 0;
  if (nvlinks > 0) return { kind: links[at + 2] === 1 ? 'nvswitch' : 'nvlink', links: nvlinks };
  return { kind: LEVELS[links[at] ?? UNKNOWN] ?? null, links: null };
}

/** Where the numbers of a pair begin; NaN: one isn't in the list, or both are the same. */
function positionOf(total: number, one: number, other: number): number {
  const first = Math.min(one, other);
  const second = Math.max(one, other);
  if (first < 0 || first === second) return Number.NaN;
  return NUMBERS_PER_PAIR * (first * total - (first * (first + 1)) / 2 + second - first - 1);
}

/** The processors near some GPUs or MIG instances, as the kernel writes them: '0-31,64-95'. null: the driver doesn't tell. */
export function cpusNear(
  topology: Topology | null,
  gpus: readonly { uuid: string; parent: string | null }[],
): string | null {
  const ranges = gpus.flatMap(({ uuid, parent }) => {
    const { cpus = [] } = placeOf(topology, parent ?? uuid) ?? {};
    return cpus.flatMap((first, i) => (i % 2 === 0 ? [`${first}-${cpus[i + 1]}`] : []));
  });
  const texts = [...new Set(ranges)].map((range) => range.replace(/^(\d+)-\1$/, '$1'));
  return texts.length === 0 ? null : texts.join();
}

/** What connections without NVLink are worth; the figures are those of NVIDIA's go-gpuallocator (gpuallocator/device.go). */
const WORTH: Readonly<Record<PCIeKind, number>> = {
  'pcie-switch': 50,
  'pcie-switches': 40,
  'host-bridge': 30,
  numa: 20,
  system: 10,
};
const WORTH_OF_NVLINK = 100;

function worthOf({ kind, links }: Connection): number {
  if (links !== null) return WORTH_OF_NVLINK * links;
  return kind === null ? 0 : WORTH[kind as PCIeKind];
}

/** What the connection of each two of some GPUs is worth: [i * number + j]. */
export function worthsOf(topology: Topology, some: readonly string[]): Float64Array {
  const table = new Float64Array(some.length ** 2);
  const rows = some.map((uuid) => topology.uuids.indexOf(uuid));
  for (let i = 0; i < rows.length; i++) {
    for (let j = i + 1; j < rows.length; j++) {
      const worth = worthOf(connectionAt(topology, rows[i] ?? -1, rows[j] ?? -1));
      table[i * rows.length + j] = worth;
      table[j * rows.length + i] = worth;
    }
  }
  return table;
}

/** Upper bound on the sets that are tried: 8 of 16 GPUs have 12,870, which takes some milliseconds. */
const MAX_SETS = 20_000;

/**
 * Chooses `count` of some GPUs: those that are best connected with each other; among equals those after which the others are
 * best connected with each other; then the first in the given order. Of very many GPUs, where there are more sets than can be tried,
 * the first ones.
 * @param worths as {@link worthsOf} gives them, for positions in the order
 * @param among sets of positions, ascending: the GPUs are chosen within one of them
 * @returns positions, ascending
 */
export function bestConnected(
  total: number,
  count: number,
  worths: Float64Array,
  among: readonly (readonly number[])[] = [Array.from({ length: total }, (_, i) => i)],
): number[] {
  /** What all others lose if a GPU is taken. */
  const degrees = new Float64Array(total);
  worths.forEach((worth, at) => {
    degrees[Math.floor(at / total)] = (degrees[Math.floor(at / total)] ?? 0) + worth;
  });
  const search = new Search(total, count, worths, degrees);
  for (const members of among) {
    const few = countSets(members.length, count) <= MAX_SETS ? members : members.slice(0, count);
    search.tryAll(few);
  }
  return search.best;
}

/** How many choices of `total` things there are; Infinity: too many to try. */
function countSets(total: number, count: number): number {
  let sets = 1;
  for (let i = 0; i < Math.min(count, total - count) && sets <= MAX_SETS; i++)
    sets = (sets * (total - i)) / (i + 1);
  return sets;
}

class Search {
  best: number[] = [];
  #inner = -1;
  #lost = 0;
  readonly #chosen: number[] = [];
  readonly #total: number;
  readonly #count: number;
  readonly #table: Float64Array;
  readonly #degrees: Float64Array;

  constructor(total: number, count: number, table: Float64Array, degrees: Float64Array) {
    this.#total = total;
    this.#count = count;
    this.#table = table;
    this.#degrees = degrees;
  }

  tryAll(members: readonly number[], from = 0, inner = 0, lost = 0): void {
    const missing = this.#count - this.#chosen.length;
    if (missing === 0) {
      this.#compare(inner, lost);
      return;
    }
    for (let at = from; at <= members.length - missing; at++) {
      const i = members[at] ?? 0;
      const gain = this.#gain(i);
      this.#chosen.push(i);
      this.tryAll(members, at + 1, inner + gain, lost + (this.#degrees[i] ?? 0));
      this.#chosen.pop();
    }
  }

  #gain(added: number): number {
    let gain = 0;
    for (const each of this.#chosen) gain += this.#table[each * this.#total + added] ?? 0;
    return gain;
  }

  /** The first of equals stays. */
  #compare(inner: number, lost: number): void {
    if (inner < this.#inner || (inner === this.#inner && lost >= this.#lost)) return;
    this.#inner = inner;
    this.#lost = lost;
    this.best = [...this.#chosen].sort((a, b) => a - b);
  }
}
