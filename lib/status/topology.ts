import { type DiscoveryRequest, type GPUStatus, topologyOf } from '../claims/index.ts';
import { connectionOf, cpusNear, isInstance, placeOf } from '../gpus/index.ts';
import type { Link, MachineTopology, Place } from '../shapes/index.ts';
import { observeGPUs } from './discovery.ts';

/** How the GPUs are connected, and their states. Takes nothing. @throws as {@link observeGPUs} */
export async function observeTopology(
  request: DiscoveryRequest,
): Promise<{ topology: MachineTopology; gpus: GPUStatus[] }> {
  const { gpus: all, directory } = await observeGPUs(request, 'machine');
  const gpus = all.filter((gpu) => !isInstance(gpu));
  const found = topologyOf(directory, gpus);
  const places = gpus.map(({ index, uuid }): Place => {
    const { nodes = [], active = -1, inactive = -1 } = placeOf(found, uuid) ?? {};
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
