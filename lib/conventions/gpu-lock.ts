import { closeSync } from 'node:fs';
import type { GPU, LeaseInfo } from '../gpus/index.ts';
import { errno } from '../native.ts';
import { Directory, now, schema, TIMEOUTS, type Waiting, warnOnce } from '../platform/index.ts';
import {
  type Claimant,
  type Convention,
  type Holders,
  keeperOf,
  keepMark,
  type Leases,
  type Mark,
  removeMark,
} from './convention.ts';
import { asPid, type ForeignFile, holderInfo, isAlive, readForeign, removeStale } from './foreign-files.ts';
import { ensureDirectory, machinePath } from './paths.ts';

/** Where its code puts its files, and where its documentation says that it does. */
const DIRECTORIES = ['/var/tmp/gpu_lock', '/var/tmp/gpu_locks'];

/** Where claims tell each other that they have seen locks of gpu_lock, so that they don't wait for it where it isn't used. */
const SIGHTING = '.seen-by-gpu-owner';
const SIGHTING_TEXT = 'Claims of gpu-owner have seen locks of gpu_lock in this directory.\n';
/** How long a sighting counts, in ms. */
const SIGHTING_MAX_AGE_MS = 7 * 24 * 3_600_000;

/** The state of a lock, as its file tells it. */
type Lock =
  | { state: 'free' | 'strange' | 'stale' }
  /** A claim of ours wrote it; its lease is held, or no longer. */
  | { state: 'ours' | 'left behind'; kept?: string | null }
  | { state: 'held'; by: LeaseInfo };

/**
 * gpu_lock: `gpu_{index}.json` in a directory for all users, with the PID of its owner.
 *
 * The tool takes a lock whose PID it may not signal for dead, and older versions replace any lock of the same user. So ours
 * says 0, which is always alive (it means the caller's own process group), and a name that no user has.
 */
export class GPULock implements Convention {
  readonly name = 'gpu_lock';

  directories(root?: string): string[] {
    return DIRECTORIES.map((path) => machinePath(path, root));
  }

  prepare(): void {
    for (const directory of this.directories()) ensureDirectory(directory, 0o777);
  }

  *holders(gpus: readonly GPU[], leases: Leases, tidy: boolean): Waiting<Holders> {
    const holders: Holders = new Map();
    for (const directory of this.#existing()) {
      let seen = false;
      for (const gpu of gpus) {
        const name = nameFor(gpu);
        const file = readForeign(directory, name);
        const lock = read(file, leases, () => keeperOf(directory, name));
        if (lock.state === 'held') holders.set(gpu.uuid, lock.by);
        seen ||= lock.state === 'held' || lock.state === 'stale';
        // gpu_lock itself never would remove it: it finds our owner alive.
        if (tidy && lock.state === 'left behind' && file.state === 'file') removeStale(directory, name, file);
      }
      if (tidy && seen) noteSighting(directory);
    }
    return holders;
  }

  // biome-ignore lint/correctness/useYield: nothing is waited for
  *mark(gpu: GPU, _all: readonly GPU[], claimant: Claimant): Waiting<Mark[] | LeaseInfo> {
    const marks: Mark[] = [];
    for (const directory of this.#existing()) {
      const name = nameFor(gpu);
      const made = make(directory, gpu, claimant);
      if (typeof made === 'number') {
        const token = claimant.isShare ? KEPT : String(claimant.epoch);
        const contestedUntil = now() + (wasSighted(directory) ? TIMEOUTS.gpuLock : 0);
        marks.push({
          kind: 'text',
          uuid: gpu.uuid,
          directory,
          name,
          descriptor: made,
          token,
          contestedUntil,
          isShared: claimant.isShare,
        });
      } else if (made !== null) {
        for (const mark of marks) removeMark(mark);
        return made;
      }
    }
    return marks;
  }

  #existing(): Directory[] {
    return this.directories().flatMap((path) => Directory.at(path) ?? []);
  }
}

function nameFor({ index }: GPU): string {
  return `gpu_${index}.json`;
}

/** Any user may create or remove it: then claims wait needlessly, or notice less. */
function wasSighted(directory: Directory): boolean {
  const note = directory.statusOf(SIGHTING);
  return note !== null && Math.abs(Date.now() - note.changedAt) < SIGHTING_MAX_AGE_MS;
}

function noteSighting(directory: Directory): void {
  if (wasSighted(directory)) return;
  const old = directory.openForProbe(SIGHTING);
  if (old >= 0) {
    directory.remove(SIGHTING, old);
    closeSync(old);
  }
  const descriptor = directory.create(SIGHTING, Buffer.from(SIGHTING_TEXT));
  if (descriptor >= 0) closeSync(descriptor);
}

/** In a file that shares of a GPU keep together. */
const KEPT = 'kept-by-shares';

/** @param keeper tells whether shares keep the file */
function read(file: ForeignFile, { isHeld }: Leases, keeper: () => number | null): Lock {
  switch (file.state) {
    case 'missing':
      return { state: 'free' };
    case 'strange':
      return { state: 'strange' };
    case 'unreadable': // some versions set such modes
      return { state: 'held', by: holderInfo('gpu_lock', { uid: file.uid }) };
    case 'file':
      break;
  }
  const contents = schema.readAs(CONTENTS, file.text);
  if (contents === null) {
    return file.fresh ? { state: 'held', by: holderInfo('gpu_lock', { uid: file.uid }) } : { state: 'stale' };
  }
  const ours = contents['gpu-owner'];
  if (ours !== null) {
    const { uuid, generation: epoch, kept } = ours;
    if (kept === KEPT) return keeper() === null ? { state: 'left behind' } : { state: 'ours', kept: uuid };
    const held = uuid !== null && epoch !== null && isHeld(uuid, epoch);
    return { state: held ? 'ours' : 'left behind' };
  }
  const pid = asPid(contents.owner);
  if (pid === null || !isAlive(pid)) return { state: 'stale' };
  const { user, time } = contents;
  return {
    state: 'held',
    by: holderInfo('gpu_lock', {
      pid,
      user,
      uid: file.uid,
      since: time === null ? null : date(time),
    }),
  };
}

const CONTENTS = schema.jsonOf(
  schema.record({
    owner: (value) => value,
    user: (value) => value,
    time: schema.or(schema.amount(), null),
    'gpu-owner': schema.or(
      schema.record({
        uuid: schema.or(schema.text, null),
        generation: schema.or(schema.amount(), null),
        kept: schema.or(schema.text, null),
      }),
      null,
    ),
  }),
);

function date(seconds: number): string | null {
  return seconds > 0 && seconds < 1e11 ? new Date(seconds * 1000).toISOString() : null;
}

const MAX_TRIES = 3;

/** A descriptor of our file, who was quicker, or null where none can be made. */
function make(directory: Directory, gpu: GPU, claimant: Claimant): number | LeaseInfo | null {
  const name = nameFor(gpu);
  for (let i = 0; i < MAX_TRIES; i++) {
    const file = readForeign(directory, name);
    const lock = read(file, claimant, () => keeperOf(directory, name));
    if (lock.state === 'held') return lock.by;
    if (lock.state === 'ours' && lock.kept === gpu.uuid && claimant.isShare) {
      const joined = directory.openForProbe(name);
      if (joined >= 0 && keepMark(directory, name, joined)) return joined;
      if (joined >= 0) closeSync(joined);
      continue; // the last one that kept it is just removing it
    }
    // Another GPU's, under the same number: as in a container that sees only some.
    if (lock.state === 'ours') return null;
    const isStale = lock.state === 'stale' || lock.state === 'left behind';
    if (isStale && file.state === 'file' && !removeStale(directory, name, file)) continue;
    const descriptor =
      lock.state === 'strange' ? -errno.EEXIST : directory.create(name, contents(gpu, claimant));
    if (descriptor >= 0) {
      if (claimant.isShare) keepMark(directory, name, descriptor);
      return descriptor;
    }
    if (descriptor !== -errno.EEXIST || lock.state === 'strange') break;
  }
  warnOnce(
    `${directory.pathOf(name)} can't be made or replaced: gpu_lock doesn't see claims of GPU ${gpu.index}.`,
  );
  return null;
}

function contents(gpu: GPU, { user, epoch, isShare }: Claimant): Uint8Array {
  const lock = {
    user: `${user} (gpu-owner)`,
    time: Math.floor(Date.now() / 1000),
    uid: gpu.index,
    id: gpu.index,
    owner: 0,
    version: 'gpu-owner',
    'gpu-owner': { uuid: gpu.uuid, generation: epoch, pid: process.pid, ...(isShare ? { kept: KEPT } : {}) },
  };
  return Buffer.from(`${JSON.stringify(lock, null, 4)}\n`);
}
