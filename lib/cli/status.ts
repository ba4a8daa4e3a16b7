import { describeBooking, type JudgedGPU } from '../claims/index.ts';
import { describeShare, isInstance, label, shownState } from '../gpus/index.ts';
import { hostName, sanitize, usageError, wrapText } from '../platform/index.ts';
import { discover, gpuJSON, observeTopology } from '../status/index.ts';
import { CRITERIA_GROUP } from './claim-options.ts';
import { checkClaim } from './claim-values.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands, SIMULATE } from './command-line.ts';
import { askFleet, HOSTS_WITH_JSON, isForHosts } from './hosts.ts';
import { hasColour, pageWidth, show } from './output.ts';
import { topologyTable } from './topology.ts';

const PLACE_WIDTH = 3;
const NAME_WIDTH = 24;
const INDENT = '     ';
const COLOURS: Record<string, string> = {
  free: '32',
  suspect: '31',
  leased: '36',
  shared: '36',
  busy: '33',
  unavailable: '31',
  excluded: '2',
};
const GIB = 1024 ** 3;

const GROUPS = [
  {
    options: {
      json: { help: 'print an array with an object per GPU; null is unknown' },
      topology: {
        help: 'show how the GPUs are connected, and which processors are near them; --json prints { gpus, links }',
      },
      ...HOSTS_WITH_JSON,
      ...SIMULATE,
    },
  },
  CRITERIA_GROUP,
] as const satisfies readonly OptionGroup[];

async function status(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  const { request } = checkClaim(values);
  if (values.topology === true) {
    if (isForHosts(values)) throw usageError('--topology is for this machine: leave out --hosts');
    const { topology, gpus } = await observeTopology(request);
    return show(values.json ? topology : topologyTable(topology, gpus));
  }
  if (isForHosts(values))
    return askFleet('status', parsed, 'gpus', ({ host, records }) => `${host}:\n${table(records)}\n`);
  const gpus = await discover(request, 'machine');
  show(values.json ? gpus.map(gpuJSON) : table(gpus));
}

/** A line per GPU or MIG instance that fits 80 columns, and below it why it isn't free. */
function table(gpus: readonly JudgedGPU[]): string {
  if (gpus.length === 0) return 'The driver reports no GPU.';
  const width = pageWidth();
  const colour = hasColour();
  const header = `GPU  ${'NAME'.padEnd(NAME_WIDTH)}  ${'MEMORY (GiB)'.padStart(13)}  UTIL  ${'POWER (W)'.padStart(9)}  TEMP  STATE`;
  const lines = gpus.flatMap((gpu) => [row(gpu, colour), ...reasonLines(gpu, width, colour)]);
  return [header, ...lines].join('\n');
}

function row(gpu: JudgedGPU, colour: boolean): string {
  const { memory } = gpu;
  const place = label(gpu).padStart(PLACE_WIDTH);
  const state = shownState(gpu);
  const colourOf = state === 'suspect' ? state : gpu.state;
  const columns = [
    place,
    // 'GPU 10:3' is longer than the column: its name, which isn't, makes room.
    shortName(gpu).padEnd(NAME_WIDTH + PLACE_WIDTH - place.length),
    `${gib(memory.usedBytes)} / ${gib(memory.totalBytes).padStart(5)}`.padStart(13),
    unit(gpu.utilizationPercent, '%').padStart(4),
    `${round(gpu.powerWatts)}/${round(gpu.powerLimitWatts)}`.padStart(9),
    unit(gpu.temperatureCelsius, 'C').padStart(4),
    colour && Object.hasOwn(COLOURS, colourOf) ? `\u001b[${COLOURS[colourOf]}m${state}\u001b[0m` : state,
  ];
  return columns.join('  ');
}

const REPAIR_WARNING =
  'warning: spare memory takes the place of faulty memory at its next reset (nvidia-smi --gpu-reset)';

/** Where the driver lists no processes, or by numbers that mean nothing here. */
const UNTOLD_USE =
  "which process is whose can't be told here: other programs are noticed once all together use more than the shares have";

function reasonLines(gpu: JudgedGPU, width: number, colour: boolean): string[] {
  const columns = Math.max(width, 40) - INDENT.length;
  const warning = gpu.memoryRepairPending && !isInstance(gpu) ? wrapText(REPAIR_WARNING, columns) : [];
  if (gpu.booking !== null && !isInstance(gpu) && shownState(gpu) !== 'booked')
    warning.unshift(...wrapText(describeBooking(gpu.booking), columns));
  const shares = gpu.shares.flatMap((share) => {
    const lines = wrapText(describeShare(share, { hostname: hostName() }), columns);
    const isOverused = colour && (share.usedBytes ?? 0) > share.bytes;
    return isOverused ? lines.map((line) => `\u001b[31m${line}\u001b[0m`) : lines;
  });
  if (shares.length > 0 && gpu.shares.every(({ usedBytes }) => usedBytes === null))
    shares.push(...wrapText(UNTOLD_USE, columns));
  // Paths can be longer than a line.
  const reason = gpu.reason?.replace(new RegExp(`\\S{${columns}}(?=\\S)`, 'gu'), '$& ') ?? null;
  const lines = reason === null ? [] : wrapText(reason, columns);
  return [...lines, ...shares, ...warning].map((line) => INDENT + line);
}

/** Leaves out of an instance's name the name of its GPU, which is in the line above. */
function shortName(gpu: JudgedGPU): string {
  const name = sanitize(gpu.name).replace(/^NVIDIA /, '') || '?';
  const short = isInstance(gpu) ? name.replace(/^.* (?=MIG )/, '  ') : name;
  return short.length <= NAME_WIDTH ? short : `${short.slice(0, NAME_WIDTH - 1)}…`;
}

function gib(bytes: number | null): string {
  return bytes === null ? '?' : (bytes / GIB).toFixed(1);
}

function round(value: number | null): string {
  return value === null ? '?' : String(Math.round(value));
}

function unit(value: number | null, symbol: string): string {
  return value === null ? '?' : `${Math.round(value)}${symbol}`;
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows every GPU: how much of it is used, and whether it is free, leased (and by whom), busy (used without a claim) or unavailable. It takes nothing and disturbs no claim.`,
  groups: GROUPS,
  run: status,
};
