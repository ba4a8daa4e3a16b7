// Files: small ones of the system, their status, their text, and where they lie. The addon asks where it is there: its first call takes
// microseconds (native/bindings/system.cc).
import {
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  readSync,
  realpathSync,
  rmSync,
  type Stats,
  statSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { asError, errorCode, ifPossible } from '../errors.ts';
import { errno, native, nativeOrNull } from '../native.ts';

/** The text of a small file of the system; null where it can't be read. */
export function readSmallFile(path: string): string | null {
  const addon = nativeOrNull();
  return addon === null ? ifPossible(() => readFileSync(path, 'utf8'), null) : addon.fileText(path);
}

/** Where a link leads; null where it is none, or can't be read. */
export function readLink(path: string): string | null {
  const addon = nativeOrNull();
  return addon === null ? ifPossible(() => readlinkSync(path), null) : addon.fileLink(path);
}

/** The status of a file. Two that have the same device and inode are the same file. */
export interface FileStatus {
  kind: 'file' | 'directory' | 'link' | 'other';
  /** Permissions, 0 to 0o7777. */
  mode: number;
  uid: number;
  gid: number;
  device: number;
  inode: number;
  size: number;
  /** How many names it has (hard links). */
  links: number;
  /** The same in ms since 1970. */
  changedAt: number;
}

const KINDS: Record<number, FileStatus['kind']> = { 4: 'directory', 8: 'file', 10: 'link' };

// As native/bindings/system.cc fills it: mode, uid, gid, device, inode, seconds and nanoseconds of the change, size, links.
const numbers = new Float64Array(9);

/** The status of the file itself, not of what a link leads to; null: there is nothing, or nothing that this process may see. */
export function statusOf(path: string): FileStatus | null {
  return ask(path, false) === 0 ? filled() : null;
}

/** The status of what a path leads to; null as in {@link statusOf}: the file systems of users may refuse even root. */
export function statusAt(path: string): FileStatus | null {
  return ask(path, true) === 0 ? filled() : null;
}

/** The status of an open file or directory. */
export function statusBehind(descriptor: number): FileStatus | null {
  return native().fileStatus(descriptor, false, numbers) === 0 ? filled() : null;
}

function filled(): FileStatus {
  const [mode = 0, uid = 0, gid = 0, device = 0, inode = 0, seconds = 0, nanoseconds = 0] = numbers;
  const [size = 0, links = 0] = numbers.subarray(7);
  const changedAt = seconds * 1000 + nanoseconds / 1e6;
  const kind = kindOf(mode);
  return { kind, mode: mode & 0o7777, uid, gid, device, inode, size, links, changedAt };
}

/** The mode of a file in four octal digits, as chmod has it. */
export function formatMode({ mode }: { mode: number }): string {
  return (mode & 0o7777).toString(8).padStart(4, '0');
}

/** Makes files that only their owner can use, despite the umask. */
export function privately<Made>(make: () => Made): Made {
  const umask = process.umask(0o077);
  try {
    return make();
  } finally {
    process.umask(umask);
  }
}

/** Whether it is a directory itself, and not a link that leads anywhere. */
export function isDirectory(path: string): boolean {
  return ask(path, false) === 0 && kindOf(numbers[0] ?? 0) === 'directory';
}

/** Whether nothing has that name, or a link leads nowhere. false also where it can't be told. */
export function isMissing(path: string): boolean {
  const error = -ask(path, true);
  return error === errno.ENOENT || error === errno.ENOTDIR;
}

/** Whether a file's owner is root. In a user namespace (rootless containers) the host's root shows as the overflow user. */
export function isRoot(uid: number): boolean {
  if (uid === 0) return true;
  return isInUserNamespace() && uid === overflowUid();
}

function overflowUid(): number {
  return Number(readSmallFile('/proc/sys/kernel/overflowuid') || 65534);
}

let mappings: readonly (readonly number[])[] | undefined;

/** This process's user namespace: lines of a uid here, the uid on the machine, and how many. */
function uidMap(): readonly (readonly number[])[] {
  mappings ??= (readSmallFile('/proc/self/uid_map') ?? '0 0 4294967295')
    .split('\n')
    .flatMap((line) => (line.trim() === '' ? [] : [line.trim().split(/\s+/).map(Number)]));
  return mappings;
}

/** Whether uids here aren't those of the machine: `unshare -r`, rootless containers. */
export function isInUserNamespace(): boolean {
  return uidMap().join() !== '0,0,4294967295';
}

/**
 * The uid on the machine, of this process's user or of a file's owner: root of a user namespace isn't the machine's root. The overflow user where
 * it isn't known.
 */
export function machineUid(uid = process.geteuid?.() ?? 0): number {
  if (!isInUserNamespace()) return uid;
  const [inside = 0, outside = 0] =
    uidMap().find(([from = 0, , count = 0]) => uid >= from && uid < from + count) ?? [];
  // In a namespace of a namespace, the uid outside is that of the first one's root.
  return uid - inside + outside || overflowUid();
}

function kindOf(mode: number): FileStatus['kind'] {
  return KINDS[mode >> 12] ?? 'other';
}

/** Fills the numbers. @returns 0 or -errno */
function ask(path: string, follow: boolean): number {
  const addon = nativeOrNull();
  if (addon !== null) return addon.fileStatus(path, follow, numbers);
  let found: Stats;
  try {
    found = follow ? statSync(path) : lstatSync(path);
  } catch (error) {
    return asError(error).errno ?? -errno.EACCES;
  }
  const { mode, uid, gid, dev, ino, ctimeMs, size, nlink } = found;
  numbers.set([mode, uid, gid, dev, ino, ctimeMs / 1000, 0, size, nlink]);
  return 0;
}

/** Makes the error for what is wrong with a file. */
export type Refuse = (why: string, cause?: unknown) => Error;

/** The size is not taken from stat: the file may be growing. @throws what `refuse` makes, e.g. of `tooLarge` */
export function readAtMost(descriptor: number, maxBytes: number, tooLarge: string, refuse: Refuse): Buffer {
  const chunks: Buffer[] = [];
  let total = 0;
  for (;;) {
    const chunk = Buffer.alloc(64 * 1024);
    let length: number;
    try {
      length = readSync(descriptor, chunk);
    } catch (error) {
      throw refuse(`it can't be read (${errorCode(error)})`, error);
    }
    if (length === 0) return Buffer.concat(chunks);
    total += length;
    if (total > maxBytes) throw refuse(tooLarge);
    chunks.push(chunk.subarray(0, length));
  }
}

/** A byte order mark is dropped. @throws what `refuse` makes */
export function decode(bytes: Uint8Array, refuse: Refuse): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (error) {
    throw refuse('it is not UTF-8; save it as UTF-8', error);
  }
}

/** By their magic numbers (statfs(2)). */
const NETWORK_FILE_SYSTEMS: Record<number, string> = {
  0x6969: 'NFS',
  0xff534d42: 'CIFS',
  0xfe534d42: 'SMB',
  0x517b: 'SMB',
  0x5346414f: 'AFS',
  0x73757245: 'Coda',
  0x00c36400: 'CephFS',
  0x0bd00bd0: 'Lustre',
  0x19830326: 'BeeGFS',
  0x47504653: 'GPFS',
  0xaad7aaea: 'PanFS',
  0x01021997: '9p',
  0x7461636f: 'OCFS2',
  0x01161970: 'GFS2',
};

/** One number for all file systems in user space: sshfs, GlusterFS, JuiceFS and ceph-fuse as well as those on local disks. */
const FUSE = 0x65735546;

/**
 * FUSE file systems whose files no other machine has, as mountinfo names them. A view of other directories (bindfs, gocryptfs)
 * may show a network.
 */
const LOCAL_FUSE = ['fuseblk', 'fuse.ext4', 'fuse.fuse-overlayfs', 'fuse.mergerfs'];

/** Names the network file system that a path is on, where locks don't mean what they mean on a disk; undefined: it is on none. */
export function networkFileSystem(path: string): string | undefined {
  const number = native().fileSystemType(path);
  if (number !== FUSE) return NETWORK_FILE_SYSTEMS[number];
  const type = mountOf(realpathSync(path), readMounts())?.type ?? 'fuse';
  return LOCAL_FUSE.includes(type) ? undefined : type;
}

/** The path, or the first of its parents that exists. */
export function nearest(path: string): string {
  return existsSync(path) || path === '/' ? path : nearest(dirname(path));
}

/** Removes files that were written longer ago. Does nothing where the directory can't be read. @param age in ms */
export function removeOlder(directory: string, age: number): void {
  for (const name of ifPossible(() => readdirSync(directory), [])) {
    const path = `${directory}/${name}`;
    const written = statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? Date.now();
    if (Date.now() - written > age) rmSync(path, { force: true });
  }
}

/** As `join(directory, name)` for names without dots: a claim makes dozens of paths, and `join` takes ten times as long. */
export function pathIn(directory: string, name: string): string {
  return directory.endsWith('/') ? directory + name : `${directory}/${name}`;
}

/** A mounted file system. */
export interface Mount {
  /** 'major:minor' of the file system, in decimal. */
  device: string;
  /** The part of the file system that is mounted: '/' = all of it. */
  root: string;
  point: string;
  type: string;
  /** Options of the mount and of the file system. */
  options: readonly string[];
}

/** The mounts that this process sees, in the order in which they were made; none where that can't be read. */
export function readMounts(): Mount[] {
  return parseMounts(readSmallFile('/proc/self/mountinfo') ?? '');
}

export function parseMounts(text: string): Mount[] {
  return text.split('\n').flatMap((line) => {
    const [before = '', after = ''] = line.split(' - ');
    const [, , device, root, point, options] = before.split(' ');
    const [type, , superOptions] = after.split(' ');
    if (!device || !root || !point || !type) return [];
    return [
      {
        device,
        root: plain(root),
        point: plain(point),
        type,
        options: [...(options ?? '').split(','), ...(superOptions ?? '').split(',')],
      },
    ];
  });
}

/** Spaces and the like are written as octal numbers. */
function plain(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
}

/** The mount in which a path lies, whose symbolic links are resolved; the last one made hides those before. */
export function mountOf(path: string, mounts: readonly Mount[]): Mount | null {
  let found: Mount | null = null;
  for (const mount of mounts) {
    const inside = mount.point === '/' || path === mount.point || path.startsWith(`${mount.point}/`);
    if (inside && mount.point.length >= (found?.point.length ?? 0)) found = mount;
  }
  return found;
}
