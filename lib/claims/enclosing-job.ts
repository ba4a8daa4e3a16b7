import { GPUOwnerError } from '../errors.ts';
import type { GPU } from '../gpus/types.ts';
import { showValue } from '../text.ts';
import { warnOnce } from '../warnings.ts';
import { descendsFrom, pidNamespace } from './ancestry.ts';
import { DEEPEST } from './lease-file.ts';
import { findHeld } from './lease-holders.ts';
import type { LockDirectory } from './lock-directory.ts';
import { leaseInfo, MOST_GENERATIONS } from './record.ts';

/** The `gpu-owner run`, known by GPU_OWNER_JOB, inside of which this process claims: claims are met from what it holds. */
export interface EnclosingJob {
  generation: number;
  /** How many GPUs of this machine it holds. */
  size: number;
}

/**
 * The job that this process belongs to; null: none. The environment is believed only as far as locks prove it, and not where
 * /proc shows that the process was started by somebody else: variables get about (`at`, files that are sourced).
 *
 * @throws ERR_INVALID_ARGUMENT where no more levels are left
 */
export function enclosingJob(directory: LockDirectory | null, gpus: readonly GPU[]): EnclosingJob | null {
  const value = process.env.GPU_OWNER_JOB;
  if (!value) return null;
  const generation = parseGeneration(value);
  if (generation === null) return ignored(`is ${showValue(value)}, which is no job`);
  if (directory === null) return ignored('names a job that holds nothing here');
  let size = 0;
  let record: Record<string, unknown> | null = null;
  for (const { uuid } of gpus) {
    const held = uuid === '' ? null : findHeld(directory, uuid, generation);
    if (held === null) continue;
    if (held.depth === DEEPEST) {
      throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `claims are nested more than ${DEEPEST} deep.`);
    }
    size++;
    record = held.record;
  }
  if (size === 0) {
    return ignored(
      `names a job that holds nothing in ${directory.path}: it has ended, or has another lock directory`,
    );
  }
  if (isElsewhere(record, generation)) {
    const { user, pid, command } = leaseInfo(record);
    return ignored(
      `names a job by which this process was not started (${user}, pid ${pid ?? 'unknown'}: ${command ?? 'unknown'})`,
    );
  }
  return { generation, size };
}

function parseGeneration(value: string): number | null {
  if (!/^\d{1,15}$/.test(value)) return null;
  const generation = Number(value);
  return generation < MOST_GENERATIONS ? generation : null;
}

/** The record may make a claim stay outside of the job, never let it in: that only locks do. */
function isElsewhere(record: Record<string, unknown> | null, generation: number): boolean {
  if (record?.generation !== generation || record.pidNamespace !== pidNamespace()) return false;
  return descendsFrom([record.keeper, record.pid]) === false;
}

function ignored(why: string): null {
  warnOnce(`GPU_OWNER_JOB ${why}. The claim is made without it, among the GPUs of the machine.`);
  return null;
}
