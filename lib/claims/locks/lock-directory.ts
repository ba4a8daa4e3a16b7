import { fchownSync } from 'node:fs';
import { simulatedMachine, simulationDirectory } from '../../config/index.ts';
import { GPUOwnerError, ifPossible } from '../../errors.ts';
import { hasPidNamespace, isWSL, mountPointOf, whichContainer } from '../../gpus/index.ts';
import { errno, native } from '../../native.ts';
import {
  Directory,
  type FileStatus,
  formatMode,
  isRoot,
  networkFileSystem,
  pathIn,
  readMounts,
  schema,
  showValue,
  statusBehind,
  statusOf,
  systemError,
  userName,
  warnOnce,
} from '../../platform/index.ts';
import { cannotMake, cannotOpen, unusable } from './lock-directory-errors.ts';
import { RECORD_SIZE } from './record.ts';

/** Made by administrators; it is empty again after every reboot, as leases are. */
export const PREFERRED = '/run/lock/gpu-owner';
/** Made by the first claim. */
const STANDARD = '/var/tmp/gpu-owner';

/** For everybody, and sticky: users can't remove the files of others. */
export const LOCK_DIRECTORY_MODE = 0o1777;

const OVERLAYFS = 0x794c7630;

// As of access(2).
const READ_AND_WRITE = 6;
const ALL_OF_IT = 7;

/** The directory that holds the locks of one machine, the same for all its users. */
export class LockDirectory {
  readonly path: string;
  /** Directories that other claimants may be using: leases held there count, new ones are not made there. */
  readonly others: readonly string[];

  /** Why no claim is possible here, in the eyes of those who only look. */
  readonly #problem: GPUOwnerError | null;
  /** null: it doesn't exist, or isn't one. */
  #directory: Directory | null;

  private constructor(
    path: string,
    others: readonly string[],
    directory: Directory | null,
    problem: GPUOwnerError | null = null,
  ) {
    this.path = path;
    this.others = others;
    this.#directory = directory;
    this.#problem = problem;
  }

  /**
   * Chooses the directory, makes it if need be, and checks it.
   * @param explicit the caller's own choice
   * @throws ERR_LOCK_DIRECTORY with cause and remedy
   */
  static open(
    explicit: string | undefined,
    configuration: { lockDirectory?: string | undefined },
  ): LockDirectory {
    const { path, others } = chooseLockDirectory(explicit, configuration);
    const directory = Directory.open(path, LOCK_DIRECTORY_MODE);
    if (typeof directory === 'number') throw cannotMake(path, -directory);
    check(directory);
    warnWherePrivate(path);
    return new LockDirectory(path, others, directory);
  }

  /** As {@link open} for those who only look: null where there is no directory yet. */
  static find(
    explicit: string | undefined,
    configuration: { lockDirectory?: string | undefined },
  ): LockDirectory | null {
    const { path, others } = chooseLockDirectory(explicit, configuration);
    const directory = Directory.open(path);
    if (typeof directory !== 'number')
      return new LockDirectory(path, others, directory, problemOf(directory));
    if (directory === -errno.ENOENT)
      return others.length === 0 ? null : new LockDirectory(path, others, null);
    return new LockDirectory(path, others, null, cannotMake(path, -directory));
  }

  /**
   * Opens a lock's file for reading and writing; it is made if missing.
   * @throws ERR_LOCK_DIRECTORY
   */
  openFile(name: string): number {
    let descriptor = this.#openShared(name);
    // The directory was removed, and perhaps created again by another claimant.
    if (descriptor === -errno.ENOENT && this.#openAgain()) descriptor = this.#openShared(name);
    if (descriptor < 0) throw cannotOpen(pathIn(this.path, name), -descriptor);
    return descriptor;
  }

  #openShared(name: string): number {
    return this.#directory?.openShared(name, RECORD_SIZE) ?? -errno.ENOENT;
  }

  /** Makes a file that only this user can read, see {@link Directory.createLocked}. @returns -errno: there is none */
  createLocked(name: string, bytes: Uint8Array): { directory: Directory; descriptor: number } | number {
    const directory = this.#directory;
    const descriptor = directory?.createLocked(name, bytes) ?? -errno.ENOENT;
    return directory === null || descriptor < 0 ? descriptor : { directory, descriptor };
  }

  /** As {@link openFile} for files without which everything works. @returns a descriptor or -errno */
  openIfPossible(name: string): number {
    return this.#problem === null ? this.#openShared(name) : -errno.EACCES;
  }

  /** Opens a file of this user's for reading and writing; it is made if missing. @returns a descriptor or -errno */
  openOwn(name: string, mode: number): number {
    return this.#directory?.openShared(name, 0, mode) ?? -errno.ENOENT;
  }

  /**
   * Makes a lock's file root's, and the file itself where it is missing: its maker could remove it while another user has it
   * locked. For root; in another user's directory it would be no use.
   */
  makeRoots(name: string): void {
    if (this.#directory?.status.uid !== 0) return;
    const descriptor = this.openIfPossible(name);
    if (descriptor < 0) return;
    const status = statusBehind(descriptor);
    // One with several names may be another user's own. Where root may not change it, it stays its maker's.
    if (status !== null && status.uid !== 0 && status.links === 1)
      ifPossible(() => fchownSync(descriptor, 0, status.gid), undefined);
    native().fileClose(descriptor);
  }

  /** The directory's owner: in a sticky one, that user can remove all files in it. null: there is none. */
  get owner(): number | null {
    return this.#directory?.status.uid ?? null;
  }

  /** Removes the file of a descriptor from one of the directories, if it still has this name. */
  remove(name: string, descriptor: number, path = this.path): void {
    this.#at(path)?.remove(name, descriptor);
  }

  /** Opens a file for reading only, here or in one of the others. @returns a descriptor or -errno */
  openForProbe(name: string, path = this.path): number {
    return this.#at(path)?.openForProbe(name) ?? -errno.ENOENT;
  }

  /** As {@link Directory.openItself}. */
  openItself(): number {
    return this.#directory?.openItself() ?? -errno.ENOENT;
  }

  /** As {@link Directory.itself}, here or for one of the others. */
  itself(path = this.path): number {
    return this.#at(path)?.itself ?? -errno.ENOENT;
  }

  /** Others look for locks at the path: what is there now, if it will do as well. Whether it is another directory. */
  #openAgain(): boolean {
    const directory = Directory.at(this.path);
    if (directory === null || directory === this.#directory || problemOf(directory) !== null) return false;
    this.#directory = directory;
    return true;
  }

  /** The problem with the directory itself, in the eyes of those who only look; null: nothing. */
  get problem(): GPUOwnerError | null {
    return this.#problem;
  }

  /** Why a lock's file can't be opened although there is one; null: it can, or it can be made. */
  whyUnusable(name: string): GPUOwnerError | null {
    if (this.#problem !== null) return this.#problem;
    const path = pathIn(this.path, name);
    const stat = statusOf(path);
    if (stat === null) return null;
    if (stat.kind === 'link') return cannotOpen(path, errno.ELOOP);
    if (stat.kind !== 'file' || mayBeSomebodysOwn(stat)) return cannotOpen(path, errno.ENXIO);
    const error = this.#directory?.access(name, READ_AND_WRITE) ?? 0;
    return error === 0 ? null : cannotOpen(path, -error);
  }

  /** Whether the name still belongs to the descriptor's file. */
  isNamed(descriptor: number, name: string): boolean {
    if (native().fileIsNamed(descriptor, pathIn(this.path, name))) return true;
    this.#openAgain();
    return false;
  }

  /** This directory and the others where leases may be held. */
  get all(): readonly string[] {
    return [this.path, ...this.others];
  }

  /** A readable descriptor of the file in each of the directories where it exists; closed when the caller goes on. */
  *filesNamed(name: string, directories = this.all): Generator<number> {
    for (const path of directories) {
      const descriptor = this.openForProbe(name, path);
      if (descriptor < 0) continue; // missing: it was never held; unreadable: see whyUnusable
      try {
        yield descriptor;
      } finally {
        native().fileClose(descriptor);
      }
    }
  }

  /** As {@link filesNamed}, those that speak for their owners: no other user may write to them. */
  *filesOfOwners(
    name: string,
    directories = this.all,
  ): Generator<{ descriptor: number; status: FileStatus }> {
    for (const descriptor of this.filesNamed(name, directories)) {
      const status = statusBehind(descriptor);
      if (status?.kind === 'file' && (status.mode & 0o022) === 0) yield { descriptor, status };
    }
  }

  /** The names in one of the directories. */
  namesIn(path: string): string[] {
    return this.#at(path)?.names() ?? [];
  }

  #at(path: string): Directory | null {
    return path === this.path ? this.#directory : Directory.at(path);
  }
}

/**
 * Whether a file may be a user's own that was linked into the directory, to be locked or written to: native/locks/ownership.h.
 */
function mayBeSomebodysOwn({ links, mode }: Pick<FileStatus, 'links' | 'mode'>): boolean {
  return links > 1 && (mode & 0o666) !== 0o666;
}

/** Which directory it is, without looking whether it will do. `others`: as in {@link LockDirectory}. */
export function chooseLockDirectory(
  explicit: string | undefined,
  configuration: { lockDirectory?: string | undefined },
): { path: string; others: string[] } {
  const named = explicit || process.env.GPU_OWNER_LOCK_DIR;
  if (named) {
    if (!schema.isAbsolutePath(named)) {
      throw new GPUOwnerError(
        'ERR_LOCK_DIRECTORY',
        `the lock directory ${showValue(named)} is not an absolute path; all claims must use the same directory.`,
      );
    }
    return { path: named, others: [] };
  }
  const machine = simulatedMachine();
  if (machine !== null) return { path: pathIn(simulationDirectory(machine), 'locks'), others: [] };
  if (configuration.lockDirectory) return { path: configuration.lockDirectory, others: [] };
  // The preferred directory may have been made (or have vanished) while leases were held in the other place.
  return statusOf(PREFERRED)?.uid === 0
    ? { path: PREFERRED, others: [STANDARD] }
    : { path: STANDARD, others: [PREFERRED] };
}

function check(directory: Directory): void {
  const { path, status: stat } = directory;
  const network = networkFileSystem(path);
  if (network !== undefined) {
    throw unusable(path, `is on a network file system (${network}), whose locks aren't reliable`);
  }
  const root = process.geteuid?.() === 0;
  const isSticky = (stat.mode & 0o1000) !== 0;
  if (root && !isRoot(stat.uid) && !isSticky) {
    throw unusable(
      path,
      `belongs to ${userName(stat.uid)} with mode ${formatMode(stat)}: root only uses directories that belong to root or are sticky`,
      `chmod 1777 ${path}`,
    );
  }
  const groups = process.getgroups?.() ?? [];
  const allowed = stat.uid === process.geteuid?.() ? 0o700 : groups.includes(stat.gid) ? 0o070 : 0o007;
  if (!root && (stat.mode & allowed & 0o333) !== (allowed & 0o333)) {
    throw unusable(
      path,
      `belongs to ${userName(stat.uid)} with mode ${formatMode(stat)}: other users can't create lock files there`,
      `Ask ${userName(stat.uid)} or an administrator for \`chmod 1777 ${path}\`.`,
    );
  }
  const error = directory.access('.', ALL_OF_IT);
  if (error !== 0) throw unusable(path, `can't be used: ${systemError(-error)}`);
  // Root can use any directory, but a lease that others can't see protects nothing.
  if (root && (stat.mode & 0o003) !== 0o003) {
    warnOnce(
      `the lock directory ${path} has mode ${formatMode(stat)}, so other users can't claim. To let them: chmod 1777 ${path}`,
    );
  }
}

function problemOf(directory: Directory): GPUOwnerError | null {
  try {
    check(directory);
    return null;
  } catch (error) {
    if (error instanceof GPUOwnerError) return error;
    throw error;
  }
}

/** Warns of locks that others can't see. Only for directories that weren't configured. */
function warnWherePrivate(path: string): void {
  if (path !== STANDARD && path !== PREFERRED) return;
  if (
    path === STANDARD &&
    readMounts().some(({ point, root }) => point === '/var/tmp' && root.includes('/systemd-private-'))
  ) {
    warnOnce(
      `${path} is private to this service (PrivateTmp), so claims by others are not seen. ` +
        `Create ${PREFERRED} for everybody (as root: install -d -m 1777 ${PREFERRED}).`,
    );
  } else if (isInsideContainer(path)) {
    warnOnce(
      `${path} seems to be inside this container: claims by the host and by other containers are not seen. ` +
        `Mount the host's lock directory, ${PREFERRED} if the host has it: docker run -v ${path}:${path} …`,
    );
  }
}

/** Whether a path is the container's own, and nothing that was mounted into it. */
function isInsideContainer(path: string): boolean {
  // Some machines have an overlay as their root without being containers.
  if (native().fileSystemType(path) === OVERLAYFS) return whichContainer() !== null || hasPidNamespace();
  // Other storage of container engines doesn't show. A distribution under WSL has numbers of its own for processes, too.
  return hasPidNamespace() && !isWSL() && mountPointOf(path) === '/';
}
