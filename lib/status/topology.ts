import { type DiscoveryRequest, type GPUStatus, topologyOf } from '../claims/index.ts';
import { connectionOf, cpusNear, isInstance, type LinkKind } from '../gpus/index.ts';
import { observeGPUs } from './discovery.ts';

/** The connection of two GPUs, by NVML's indices. */
export interface Link {
  a: number;
  b: number;
  /** null: the driver doesn't tell. */
  kind: LinkKind | null;
  /** Active NVLinks between the two; null: not connected by them. */
  links: number | null;
}

/** What is near a GPU. */
export interface Place {
  index: number;
  uuid: string;
  /** The processors as the kernel writes them, '0-31,64-95'; null: the driver doesn't tell. */
  cpus: string | null;
  /** The NUMA node of these processors; null: the driver doesn't tell, or there are several. */
  numaNode: number | null;
  /** NVLinks that are up, and those that aren't; null: the driver doesn't tell. */
  nvlinks: { active: number; inactive: number } | null;
}

/** The GPUs of the machine and their connections, each pair once. */
export interface MachineTopology {
  gpus: Place[];
  links: Link[];
}

/** How the GPUs are connected, and their states. Takes nothing. @throws as {@link observeGPUs} */
export async function observeTopology(
  request: DiscoveryRequest,
): Promise<{ topology: MachineTopology; gpus: GPUStatus[] }> {
  const { gpus: all, directory } = await observeGPUs(request, 'machine');
  const gpus = all.filter((gpu) => !isInstance(gpu));
  const found = topologyOf(directory, gpus);
  const places = gpus.map(({ index, uuid }): Place => {
    const { nodes = [], active = -1, inactive = -1 } = found?.places[index] ?? {};
    return {
      index,
      uuid,
      cpus: cpusNear(found, [{ uuid, parent: null }]),
      numaNode: nodes.length === 2 && nodes[0] === nodes[1] ? (nodes[0] ?? null) : null,
      nvlinks: active < 0 ? null : { active, inactive },
    };
  });
  const links = gpus.flatMap((a, i) =>
    gpus.slice(i + 1).map((b): Link => {
      const { kind, links } =
        found === null ? { kind: null, links: null } : connectionOf(found, a.uuid, b.uuid);
      return { a: a.index, b: b.index, kind, links };
    }),
  );
  return { topology: { gpus: places, links }, gpus };
}
