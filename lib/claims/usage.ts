import { basename } from 'node:path';
import { loadConfiguration, simulatedMachine } from '../config/index.ts';
import { ledgerDirectory, UsageLine } from '../usage/index.ts';
import type { Claim } from './claim.ts';
import { partOf } from './limits.ts';
import { chooseLockDirectory } from './lock-directory.ts';

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

/** Where the ledger of the machine is; null: it has none. @throws ERR_CONFIGURATION, ERR_LOCK_DIRECTORY */
export function ledgerOf(lockDirectory: string | undefined): string | null {
  return ledgerDirectory(
    chooseLockDirectory(lockDirectory, loadConfiguration()).path,
    simulatedMachine() !== null,
  );
}

/** The name of the program alone: everybody reads the ledger. */
function programOf(command: string): string {
  const [, quoted, plain = ''] = /^(?:'([^']*)'|(\S*))/.exec(command) ?? [];
  return basename(quoted ?? plain).slice(0, 64);
}
