import { fstatSync } from 'node:fs';
import { findRemovedLeases, isLocked, LEASE, type LockDirectory, leaseName } from '../claims/index.ts';
import type { GPU } from '../gpus/index.ts';
import { native } from '../native.ts';
import { type LockOwner, type OpenFile, ownersOf } from '../platform/index.ts';

/** Makes the lease files of GPUs root's, as whom this runs: no user can remove one, and claim what another user has leased. */
export function protectLeaseFiles(directory: LockDirectory, uuids: readonly string[]): void {
  for (const uuid of uuids) directory.makeRoots(leaseName(uuid));
}

/** The file of a lease that lasts. */
interface LeaseFile {
  /** Kept open: so it stays the same file if a user removes or replaces it. */
  descriptor: number;
  identity: string;
  /** The look in which it was first seen to be locked. */
  since: number;
  /** Whether it has the lease's name, in one of the directories. */
  isNamed: boolean;
}

/**
 * The files of leases, for one who must not take another's lease for that of a GPU. Anybody may have made a lease's file, and can
 * remove it while another user has it locked; and any user can lock a file of that name in the other directory.
 */
export class LeaseFiles {
  readonly #files = new Map<string, LeaseFile[]>();
  /** The files that have had a lease's name, and those that were removed before: by the name. */
  readonly #named = new Map<string, Set<string>>();
  readonly #removed = new Map<string, Set<string>>();
  #directory: Pick<LockDirectory, 'all' | 'itself'> | null = null;
  #look = 0;

  /** Looks which leases last. @param uuids the GPUs and instances that there are now @param search finds the locks of all processes */
  look(
    directory: Pick<LockDirectory, 'all' | 'itself' | 'openForProbe'>,
    uuids: readonly string[],
    search: () => readonly OpenFile[],
  ): void {
    this.#directory = directory;
    this.#look++;
    for (const uuid of new Set([...uuids, ...this.#files.keys()])) {
      const files = this.#lasting(uuid);
      for (const path of directory.all) {
        const descriptor = directory.openForProbe(leaseName(uuid), path);
        if (descriptor < 0) continue;
        const { dev, ino } = fstatSync(descriptor);
        const identity = `${dev} ${ino}`;
        this.#noteRemoved(directory, uuid, identity, search);
        const known = files.find((file) => file.identity === identity);
        if (known !== undefined) known.isNamed = true;
        if (known !== undefined || !isLocked(descriptor)) native().fileClose(descriptor);
        else files.push({ descriptor, identity, since: this.#look, isNamed: true });
      }
      if (files.length === 0) this.#files.delete(uuid);
      else this.#files.set(uuid, files);
    }
  }

  /**
   * Nobody can remove a file that is root's. So leases whose files were removed are as old as the first look at the file that has the name
   * now, and what looks like one later is forged.
   */
  #noteRemoved(
    directory: Pick<LockDirectory, 'all' | 'itself'>,
    uuid: string,
    identity: string,
    search: () => readonly OpenFile[],
  ): void {
    const named = this.#named.get(uuid) ?? new Set();
    if (named.has(identity)) return;
    this.#named.set(uuid, named.add(identity));
    const removed = findRemovedLeases(directory, leaseName(uuid), search()).map((lease) => lease.identity);
    this.#removed.set(uuid, new Set([...(this.#removed.get(uuid) ?? []), ...removed]));
  }

  #lasting(uuid: string): LeaseFile[] {
    return (this.#files.get(uuid) ?? []).filter((file) => {
      file.isNamed = false;
      if (isLocked(file.descriptor)) return true;
      native().fileClose(file.descriptor);
      return false;
    });
  }

  /** Whether a GPU or an instance is leased, or was when its file was removed. */
  has(uuid: string): boolean {
    return this.#files.has(uuid);
  }

  /**
   * The processes that have leased a GPU, by the kernel's locks, not by records; none if that is unknown, or it isn't
   * leased. A file that is locked later than another counts for nothing, unless the other has lost its name: then both do,
   * also where that was before the first look.
   * @param files as for `ownersOf`
   */
  owners({ uuid, parent }: Pick<GPU, 'uuid' | 'parent'>, files: readonly OpenFile[]): LockOwner[] {
    const all = this.#files.get(uuid) ?? [];
    const first = Math.min(...all.filter(({ isNamed }) => isNamed).map(({ since }) => since));
    const owners = all
      .filter(({ isNamed, since }) => !isNamed || since === first)
      .flatMap(({ descriptor }) => ownersOf(descriptor, LEASE, files));
    const removed =
      this.#directory === null ? [] : findRemovedLeases(this.#directory, leaseName(uuid), files);
    const isKnown = ({ identity }: { identity: string }) => this.#removed.get(uuid)?.has(identity) === true;
    owners.push(...removed.filter(isKnown).map(({ owner }) => owner));
    return owners.length > 0 || parent === null ? owners : this.owners({ uuid: parent, parent: null }, files);
  }

  release(): void {
    for (const { descriptor } of [...this.#files.values()].flat()) native().fileClose(descriptor);
    this.#files.clear();
  }
}
