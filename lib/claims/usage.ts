import { basename } from 'node:path';
import { loadConfiguration, simulatedMachine } from '../config/index.ts';
import { ifPossible } from '../errors.ts';
import { isInstance, snapshotSync } from '../gpus/index.ts';
import { native } from '../native.ts';
import { now } from '../platform/index.ts';
import { ledgerDirectory, UsageLine } from '../usage/index.ts';
import type { Claim } from './claim.ts';
import { chooseLockDirectory } from './locks/index.ts';
import { partOf } from './queue/index.ts';

const DEFAULT_USAGE_KEPT_MS = 400 * 24 * 3_600_000;

/** Begins the line of a claim's leases in the ledger of usage; null: it has none. Inside a job, the job's line has its GPUs. */
export function beginUsage({
  directory,
  job,
  gpus,
  all,
  leases,
  leasedAt,
  waitedMs = 0,
}: Claim): UsageLine | null {
  const record = leases[0]?.record;
  const path = ledgerDirectory(directory.path, simulatedMachine() !== null);
  if (record === undefined || job !== null || path === null) return null;
  const { command, name, job: number } = record;
  const lease = {
    since: leasedAt,
    waitedMs,
    gpus: gpus.map((gpu) => {
      const { index, instance, uuid } = gpu;
      const share = leases.find((lease) => lease.uuid === uuid)?.share ?? null;
      const part = share === null ? 1 : share.units / share.capacity;
      if (instance === null) return { index, uuid, ...(share === null ? {} : { part }) };
      return { index, instance, uuid, part: part * (partOf(gpu, all) ?? 1) };
    }),
    program: programOf(command),
    name,
    job: number,
  };
  return UsageLine.begin(path, lease, () => loadConfiguration().usageKept ?? DEFAULT_USAGE_KEPT_MS);
}

/** Why nothing is known of what a claim's GPUs do: what the driver says of a card is about others, too. null: it is known. */
export function whyUnread({ gpus, job, leases }: Claim): string | null {
  if (job !== null) return 'inside of a job';
  if (gpus.some(isInstance)) return 'of MIG instances';
  return leases.some(({ share }) => share !== null) ? 'of a part of a GPU' : null;
}

/** Has claims of this process note the GPUs' energy counters, for {@link energySince}. */
export function noteEnergy(): void {
  native().driverReadEnergy(false);
}

/** Pause after a driver call without an answer, in ms: if the driver hangs, each claim of a process would wait for it. */
const SILENCE_MS = 10_000;
let askAgain = 0;

/** The energy that a claim's GPUs have used since it was made, in mJ; null: unknown. Blocks as a snapshot does. */
export function energySince(claim: Claim): number | null {
  const { gpus } = claim;
  const isUnknown = whyUnread(claim) !== null || gpus.some(({ energyJoules }) => energyJoules === undefined);
  if (isUnknown || now() < askAgain) return null;
  let joules = 0;
  const seen = ifPossible(() => snapshotSync(gpus.map(({ index }) => index)), []); // a lease ends in any case
  for (const { uuid, energyJoules: before = 0 } of gpus) {
    const after = seen.find((gpu) => gpu.uuid === uuid)?.energyJoules;
    if (after === undefined) askAgain = now() + SILENCE_MS;
    // The counter restarts with the driver.
    if (after === undefined || after < before) return null;
    joules += after - before;
  }
  return Math.round(1_000 * joules);
}

/** Where the ledger of the machine is; null: it has none. @throws ERR_CONFIGURATION, ERR_LOCK_DIRECTORY */
export function ledgerOf(lockDirectory: string | undefined): string | null {
  return ledgerDirectory(
    chooseLockDirectory(lockDirectory, loadConfiguration()).path,
    simulatedMachine() !== null,
  );
}

/** The name of the program alone, without its arguments: everybody reads the ledger. A program of ours has its command's name, too. */
function programOf(command: string): string {
  const [own] = /^gpu-owner [a-z]+( (run|worker)\b)?/.exec(command) ?? [];
  if (own !== undefined) return own;
  const [, quoted, plain = ''] = /^(?:'([^']*)'|(\S*))/.exec(command) ?? [];
  return basename(quoted ?? plain).slice(0, 64);
}
