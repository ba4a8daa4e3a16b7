// Metrics of a machine for Prometheus: how its GPUs are, who has them, who waits. An unknown value has no sample, never 0.
import type { DiscoveryRequest, GPUStatus } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { isDivided, isInstance, type LeaseInfo } from '../gpus/index.ts';
import { bootMilliseconds, MAX_USER_NAME_LENGTH, sanitize, warnOnce } from '../platform/index.ts';
import type { Family, MetricSample } from '../prometheus/index.ts';
import { observeGPUs, readActivity } from '../status/index.ts';

const STATES: readonly GPUStatus['state'][] = Object.keys({
  free: 0,
  leased: 0,
  shared: 0,
  busy: 0,
  unavailable: 0,
  excluded: 0,
} satisfies Record<GPUStatus['state'], 0>) as GPUStatus['state'][];

/** A GPU or a MIG instance, with what only metrics tell of it. */
interface Reading {
  labels: Record<string, string>;
  gpu: GPUStatus;
  /** How long its holder has left it idle; null: it works, it isn't known, or it isn't leased. */
  idleSeconds: number | null;
  /** How many processes compute there without a claim. */
  intruders: number;
}

/** Labels, and a value; null: unknown. */
type Value = readonly [labels: Record<string, string>, value: number | null | undefined];

/** Clocks are set, and records have times of another clock: times this long before the boot still count. */
const CLOCK_TOLERANCE_MS = 86_400_000;
const MAX_NAME_LENGTH = 64;

/**
 * The families of metrics of this machine at this moment. A driver that doesn't work is a value among them: what the locks tell is
 * known without it.
 * @throws ERR_CONFIGURATION, ERR_INVALID_ARGUMENT, ERR_LOCK_DIRECTORY
 */
export async function machineFamilies(request: DiscoveryRequest): Promise<Family[]> {
  const observed = await observeGPUs(request, 'machine').catch(driverDown);
  const now = Date.now();
  const { gpus = [], intruders } = observed ?? {};
  const readings = gpus.map(
    (gpu): Reading => ({
      labels: labelsOf(gpu),
      gpu,
      idleSeconds: idleSeconds(gpu, now),
      intruders: intruders?.get(gpu.uuid)?.length ?? 0,
    }),
  );
  const families = [
    gauge('gpu_owner_driver_up', 'Whether the driver works (1).', [[{}, observed === null ? 0 : 1]]),
    ...gpuFamilies(readings),
    ...leaseFamilies(readings, now),
    ...shareFamilies(readings),
    ...queueFamilies(request.lockDirectory, observed?.gpus.length ?? null, now),
  ];
  return families.filter(({ samples }) => samples.length > 0);
}

function driverDown(error: unknown): null {
  const isDriver = error instanceof GPUOwnerError && /^ERR_(NO_)?DRIVER$/.test(error.code);
  if (!isDriver) throw error;
  warnOnce(error.message);
  return null;
}

/** Counted from the lease at the earliest. */
function idleSeconds({ lease, idle }: GPUStatus, now: number): number | null {
  const since = lease === null ? null : pastTime(idle?.since ?? null, now);
  return since === null ? null : (now - Math.max(since, pastTime(lease?.since ?? null, now) ?? 0)) / 1_000;
}

/** The help of a gauge, and the value of each of its samples; null: unknown. */
type Gauge<Of> = readonly [help: string, value: (of: Of) => number | null | undefined];

/** A gauge for each name, with a sample for each item. */
function gaugesOf<Of extends { labels: Record<string, string> }>(
  items: readonly Of[],
  gauges: Readonly<Record<string, Gauge<Of>>>,
): Family[] {
  return Object.entries(gauges).map(([name, [help, value]]) =>
    gauge(
      name,
      help,
      items.map((item) => [item.labels, value(item)]),
    ),
  );
}

const GPU_GAUGES: Readonly<Record<string, Gauge<Reading>>> = {
  gpu_owner_gpu_up: [
    'Whether the driver answers for the GPU, and reports no fault (1).',
    ({ gpu }) => (gpu.health === 'ok' ? 1 : 0),
  ],
  gpu_owner_gpu_suspect: [
    'Whether CUDA failed on the GPU within the last hour (1).',
    ({ gpu }) => (gpu.suspect === null ? 0 : 1),
  ],
  gpu_owner_gpu_memory_total_bytes: ['Memory of the GPU.', ({ gpu }) => gpu.memory.totalBytes],
  gpu_owner_gpu_memory_used_bytes: [
    "Memory in use, without the driver's own where it tells that apart.",
    ({ gpu }) => gpu.memory.usedBytes,
  ],
  gpu_owner_gpu_utilization_ratio: [
    'The share of the last moment in which a kernel ran, 0 to 1.',
    ({ gpu }) => (gpu.utilizationPercent === null ? null : gpu.utilizationPercent / 100),
  ],
  gpu_owner_gpu_power_watts: ['Power draw.', ({ gpu }) => gpu.powerWatts],
  gpu_owner_gpu_temperature_celsius: ['Temperature of the GPU.', ({ gpu }) => gpu.temperatureCelsius],
  gpu_owner_gpu_processes_without_claim: [
    'Compute processes on a GPU that nobody, or another lease, has.',
    withoutClaim,
  ],
};

function gpuFamilies(readings: readonly Reading[]): Family[] {
  return [
    gauge(
      'gpu_owner_gpu_info',
      'The name of a GPU or MIG instance; always 1.',
      readings.map(({ gpu, labels }) => [{ ...labels, name: sanitize(gpu.name, MAX_NAME_LENGTH) }, 1]),
    ),
    gauge(
      'gpu_owner_gpu_state',
      'The state of a GPU: 1 for the one that it is in.',
      readings.flatMap(({ gpu, labels }) =>
        STATES.map((state): Value => [{ ...labels, state }, gpu.state === state ? 1 : 0]),
      ),
    ),
    ...gaugesOf(readings, GPU_GAUGES),
  ];
}

/** null: unknown, or those of its instances. */
function withoutClaim({ gpu, intruders }: Reading): number | null {
  if (isDivided(gpu)) return null;
  return gpu.lease === null && gpu.shares.length === 0 ? countComputing(gpu) : intruders;
}

/** null: the driver doesn't list them. */
function countComputing({ processes }: GPUStatus): number | null {
  return processes?.filter(({ type }) => type === 'compute').length ?? null;
}

/** The times are those of records, which any user may have written. */
function leaseFamilies(readings: readonly Reading[], now: number): Family[] {
  const leased = readings.flatMap(({ gpu: { lease }, labels, idleSeconds }) => {
    if (lease === null) return [];
    const since = pastTime(lease.since, now);
    return [{ labels: { ...labels, ...userLabels(lease) }, since, idleSeconds }];
  });
  return gaugesOf(leased, {
    gpu_owner_gpu_leased: ['The user who has leased the GPU; always 1.', () => 1],
    gpu_owner_gpu_leased_seconds: [
      'How long the GPU has been leased.',
      ({ since }) => since && (now - since) / 1_000,
    ],
    gpu_owner_gpu_idle_seconds: ['How long the leased GPU has been idle.', ({ idleSeconds }) => idleSeconds],
  });
}

function shareFamilies(readings: readonly Reading[]): Family[] {
  const shares = readings.flatMap(({ gpu, labels }) =>
    gpu.shares.flatMap((share) => {
      if (share.pid === null) return []; // a user may have several of one GPU
      return [{ labels: { ...labels, ...userLabels(share), pid: String(share.pid) }, ...share }];
    }),
  );
  return gaugesOf(shares, {
    gpu_owner_share_bytes: ['The memory of a share of a GPU.', ({ bytes }) => bytes],
    gpu_owner_share_used_bytes: [
      "What a share's processes use of the GPU's memory.",
      ({ usedBytes }) => usedBytes,
    ],
  });
}

/** @param gpus how many GPUs and instances there are; null: unknown */
function queueFamilies(lockDirectory: string | undefined, gpus: number | null, now: number): Family[] {
  const { waiting } = readActivity(lockDirectory);
  const single = (name: string, help: string, value: number | null) => gauge(name, help, [[{}, value]]);
  const active = waiting.filter(({ isSuspended }) => !isSuspended);
  const begins = active.flatMap(({ info: { since } }) => pastTime(since, now) ?? []);
  const longest = begins.reduce((most, begin) => Math.max(most, now - begin), 0);
  return [
    single('gpu_owner_waiting_claims', 'Claims in the wait queue, suspended ones included.', waiting.length),
    single(
      'gpu_owner_waiting_gpus',
      'GPUs that the claims in the wait queue ask for.',
      // A forged record can ask for any number.
      waiting.reduce((sum, { count }) => sum + Math.min(count, gpus ?? count), 0),
    ),
    single(
      'gpu_owner_suspended_claims',
      'Claims in the wait queue that are skipped, since they are suspended.',
      waiting.length - active.length,
    ),
    single(
      'gpu_owner_longest_wait_seconds',
      'How long the claim that has waited longest has waited, without suspended ones; 0: nobody waits.',
      active.length > 0 && begins.length === 0 ? null : longest / 1_000,
    ),
  ];
}

/** `mig` is the number of an instance on its GPU: Prometheus gives `instance` to every series itself. */
function labelsOf(gpu: GPUStatus): Record<string, string> {
  return {
    gpu: String(gpu.index),
    ...(isInstance(gpu) ? { mig: String(gpu.instance) } : {}),
    uuid: sanitize(gpu.uuid, MAX_NAME_LENGTH),
  };
}

/** The uid tells users apart whose names look alike. */
function userLabels({ user, uid }: Pick<LeaseInfo, 'user' | 'uid'>): Record<string, string> {
  const name = sanitize(user, MAX_USER_NAME_LENGTH).replace(/[^\p{L}\p{N}.@\\_+$-]/gu, '_');
  return { user: name || 'unknown', ...(uid === null ? {} : { uid: String(uid) }) };
}

/** A time since the machine has started, in ms since 1970: kernel locks are no older. null: unknown, or absurd. */
function pastTime(time: string | null, now: number): number | null {
  const at = Date.parse(time ?? '');
  return at <= now && at >= now - bootMilliseconds() - CLOCK_TOLERANCE_MS ? at : null;
}

function gauge(name: string, help: string, values: readonly Value[]): Family {
  const samples = values.flatMap(([labels, value]): MetricSample[] =>
    typeof value === 'number' && Number.isFinite(value) ? [{ labels, value }] : [],
  );
  return { name, help, samples };
}
