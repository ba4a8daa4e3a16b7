import { closeSync, readSync } from 'node:fs';
import { type Claimant, isIntact, type Leases, type Mark } from '../conventions/index.ts';
import { GPUOwnerError } from '../errors.ts';
import type { GPU } from '../gpus/index.ts';
import { native } from '../native.ts';
import { now, sleeping, type Waiting } from '../platform/index.ts';
import { isLeased, isTenureHeld } from './lease-file.ts';
import type { LockDirectory } from './lock-directory.ts';
import { RECORD_SIZE, type RecordContents } from './record.ts';

/** In which claims tell each other since when they have been sharing safe-gpu's lock. */
const NOTE = 'safe-gpu.sharing';

/** The leases, as other conventions ask for them. @param directory null: there are none yet */
export function leasesIn(directory: LockDirectory | null): Leases {
  return {
    isLeased: (uuid) => directory !== null && isLeased(directory, { uuid }),
    isHeld: (uuid, generation) => directory !== null && isTenureHeld(directory, uuid, generation),
  };
}

/** A claim, as other conventions see it. @param patience how long to wait for somebody who doesn't move, in ms */
export function claimantOf(directory: LockDirectory, record: RecordContents, patience: number): Claimant {
  return {
    user: record.user,
    generation: record.generation,
    ...leasesIn(directory),
    note: {
      read: () => readNote(directory),
      write: (text) => writeNote(directory, noteBlock(text)),
    },
    patience,
  };
}

function readNote(directory: LockDirectory): string {
  for (const descriptor of directory.filesNamed(NOTE, [directory.path])) {
    const block = Buffer.alloc(RECORD_SIZE);
    const length = readSync(descriptor, block, 0, RECORD_SIZE, 0);
    return block.toString('utf8', 0, length).replace(/[\s\0]+$/, '');
  }
  return '';
}

/** Without the note claims share the lock all the same: it only keeps others from starving. */
function writeNote(directory: LockDirectory, block: Uint8Array): void {
  let descriptor: number;
  try {
    descriptor = directory.openFile(NOTE);
  } catch (error) {
    if (error instanceof GPUOwnerError) return;
    throw error;
  }
  try {
    native().fileWriteBlock(descriptor, block);
  } finally {
    closeSync(descriptor);
  }
}

function noteBlock(text: string): Uint8Array {
  const block = Buffer.alloc(RECORD_SIZE, ' ');
  block.write(text);
  block[RECORD_SIZE - 1] = 0x0a;
  return block;
}

/**
 * Whether somebody has replaced what shows them that GPUs are ours: a program that had looked before and wrote after us. Then it
 * will use the GPU. Waits for those that write long after they have looked.
 */
export function* findOverwrittenMarks(
  marks: readonly Mark[],
  gpus: readonly GPU[],
): Waiting<GPUOwnerError | null> {
  const contested = Math.max(0, ...marks.map(({ contestedUntil = 0 }) => contestedUntil)) - now();
  if (contested > 0 && marks.every(isIntact)) yield* sleeping(contested);
  const lost = marks.filter((mark) => !isIntact(mark));
  if (lost.length === 0) return null;
  const reasons = lost.map(({ uuid, directory, name }) => ({
    index: gpus.find((gpu) => gpu.uuid === uuid)?.index ?? -1,
    uuid,
    reason: `somebody replaced ${directory.pathOf(name)} while it was being claimed`,
  }));
  const list = reasons.map(({ index, reason }) => `  GPU ${index}: ${reason}`).join('\n');
  return new GPUOwnerError(
    'ERR_GPU_UNAVAILABLE',
    `another program locked these GPUs during the claim:\n${list}`,
    {
      gpus: reasons,
    },
  );
}
