import type { GPUStatus } from '../claims/index.ts';
import { LINK_KINDS, type LinkKind } from '../gpus/index.ts';
import { sanitize } from '../platform/index.ts';
import type { Link, MachineTopology } from '../shapes/index.ts';
import { alignColumns } from './output.ts';

const MEANINGS: Readonly<Record<LinkKind, string>> = {
  nvlink: 'that many NVLinks',
  nvswitch: 'that many NVLinks',
  'pcie-switch': 'one PCIe switch',
  'pcie-switches': 'several PCIe switches',
  'host-bridge': 'one PCIe host bridge',
  numa: 'one NUMA node',
  system: 'across NUMA nodes',
};

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
      ...gpus.map((other) => (other.index === index ? 'X' : shortName(between(index, other.index)))),
      numaNode === null ? '?' : String(numaNode),
      cpus ?? '?',
      lease === null ? state : `${state} by ${sanitize(lease.user)}`,
    ];
  });
  const lines = alignColumns([header, ...rows], (column) => column === 0);
  return [...lines, ...legend(links), ...downLinks(gpus)].join('\n');
}

function shortName(link: Link | undefined): string {
  if (link === undefined || link.kind === null) return '?';
  return `${LINK_KINDS[link.kind]}${link.links ?? ''}`;
}

/** Explains the kinds that this machine has, the best first. */
function legend(links: readonly Link[]): string[] {
  const present = new Set(links.map(({ kind }) => kind));
  const texts = (Object.keys(LINK_KINDS) as LinkKind[])
    .filter((kind) => present.has(kind))
    .map((kind) => `${LINK_KINDS[kind]}${LINK_KINDS[kind] === 'NV' ? '#' : ''}: ${MEANINGS[kind]}`);
  return texts.length === 0 ? [] : ['', [...new Set(texts)].join('; ')];
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
