import type { GPUStatus } from '../claims/index.ts';
import { linkLegend, linkSign } from '../gpus/index.ts';
import { sanitize } from '../platform/index.ts';
import type { MachineTopology } from '../shapes/index.ts';
import { alignColumns } from './output.ts';

/** A matrix as `nvidia-smi topo -m` prints it, with what is near each GPU and who leases it. */
export function topologyTable({ gpus, links }: MachineTopology, statuses: readonly GPUStatus[]): string {
  if (gpus.length === 0) return 'The driver reports no GPU.';
  const between = (a: number, b: number) =>
    links.find((link) => (link.a === a && link.b === b) || (link.a === b && link.b === a));
  const header = ['GPU', ...gpus.map(({ index }) => String(index)), 'NUMA', 'CPUS', 'STATE'];
  const rows = gpus.map(({ index, cpus, numaNode }, i) => {
    const { state = 'unavailable', lease = null } = statuses[i] ?? {};
    return [
      String(index),
      ...gpus.map((other) => (other.index === index ? 'X' : linkSign(between(index, other.index)))),
      numaNode === null ? '?' : String(numaNode),
      cpus ?? '?',
      lease === null ? state : `${state} by ${sanitize(lease.user)}`,
    ];
  });
  const legend = linkLegend(links);
  const lines = alignColumns([header, ...rows], (column) => column === 0);
  return [...lines, ...(legend === '' ? [] : ['', legend]), ...downLinks(gpus)].join('\n');
}

function downLinks(gpus: MachineTopology['gpus']): string[] {
  return gpus.flatMap(({ index, nvlinks }) =>
    nvlinks === null || nvlinks.inactive === 0
      ? []
      : [
          `warning: GPU ${index}: ${nvlinks.inactive} of its ${nvlinks.active + nvlinks.inactive} NVLinks are down`,
        ],
  );
}
