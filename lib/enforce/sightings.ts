// The processes that compute where they may not. Any user can write records of leases, so a GPU's owner follows from the kernel's locks.
import { type GPUStatus, type LockDirectory, leaseOwners } from '../claims/index.ts';
import type { EnforceRules } from '../config/index.ts';
import { computePids, describeListedProcess, isDivided, label } from '../gpus/index.ts';
import { native } from '../native.ts';
import {
  describeProcess,
  findGid,
  groupsOf,
  isLocalUser,
  isRoot,
  isUserOf,
  lineage,
  lockedFiles,
  type OpenFile,
  processIds,
  readLink,
  readProcessStat,
  readSmallFile,
  sanitize,
  searchLockedFiles,
  statusOf,
  TIMEOUTS,
  threadsOf,
  userName,
} from '../platform/index.ts';
import type { Cases, Sighting } from './cases.ts';
import { HeldProcess } from './held-process.ts';

const MAX_ANCESTORS = 100;
/** The kernel counts starts of processes in hundredths of a second. */
const TICK_MS = 10;
/** A process that computes where it may not. */
export interface Offence extends Sighting {
  held: HeldProcess;
  uid: number;
  gid: number;
  user: string;
  name: string;
  /** How people name the GPU. */
  gpu: string;
  /** The user who has leased the GPU; null: it isn't leased. */
  holder: string | null;
}

/** A process's own account of who it is, by the kernel. */
interface Credentials {
  /** The real, effective, saved one and that of files; in a user namespace, the user who has made it. */
  uids: readonly number[];
  /** Whether it is in a user namespace that a user of this machine has made, whose users are all that user's. */
  hasOwnUsers: boolean;
  /** The real one. */
  gid: number;
  gids: ReadonlySet<number>;
}

interface Circumstances {
  /** The look in which the process was first seen on the GPU. */
  first: number;
  /** null: the GPU isn't leased. */
  directory: LockDirectory | null;
  began: number;
  cases: Cases;
  search: () => Search;
}

interface Search {
  /** The open files with locks of all processes, but of those that have too many files. */
  files: readonly OpenFile[];
  missed: readonly number[];
}

/** A GPU that was leased in all looks since one. */
interface SeenLease {
  /** null: the holder wasn't looked for. */
  holder: string | null;
  since: number;
}

/** The watch over the GPUs of a machine, with what it has seen since it began. */
export class Watch {
  rules: EnforceRules;
  /** The processes of the last look, held since they were first seen. */
  #held = new Map<number, HeldProcess>();
  /** The look in which each process was first seen on a GPU. */
  #firstLooks = new Map<string, number>();
  readonly #leases = new Map<string, SeenLease>();
  #look = 0;
  #missed: readonly number[] = [];

  constructor(rules: EnforceRules) {
    this.rules = rules;
  }

  /**
   * @param gpus as they are now @param began when the look at them began, in ms since boot
   * @param cases known ones: their processes needn't be seen to come again
   */
  look(gpus: readonly GPUStatus[], directory: LockDirectory | null, began: number, cases: Cases): Offence[] {
    this.#look++;
    const held = new Map<number, HeldProcess>();
    const firstLooks = new Map<string, number>();
    const offences: Offence[] = [];
    let found: Search | undefined;
    const search = () => (found ??= searchLocks());
    for (const gpu of gpus) {
      if (isDivided(gpu) || gpu.uuid === '') continue;
      const isLeased = gpu.lease !== null || gpu.state === 'shared';
      if (!isLeased) this.#leases.delete(gpu.uuid);
      else if (!this.#leases.has(gpu.uuid)) this.#leases.set(gpu.uuid, { holder: null, since: this.#look });
      for (const pid of new Set(computePids(gpu))) {
        const process = held.get(pid) ?? this.#hold(pid);
        if (process === null) continue;
        held.set(pid, process);
        const key = `${gpu.uuid} ${process.key}`;
        const first = this.#firstLooks.get(key) ?? this.#look;
        firstLooks.set(key, first);
        const offence = this.#judge(gpu, process, {
          first,
          directory: isLeased ? directory : null,
          began,
          cases,
          search,
        });
        if (offence !== null) offences.push(offence);
      }
    }
    for (const [pid, process] of this.#held) if (held.get(pid) !== process) process.release();
    this.#missed = found?.missed ?? [];
    this.#held = held;
    this.#firstLooks = firstLooks;
    // A process that ended meanwhile may have left its number to another one, of which this was read.
    return offences.filter((offence) => offence.held.isAlive);
  }

  /** In words, a process that had too many open files in the last look; null: there was none. */
  get missed(): string | null {
    const pid = this.#missed.at(-1);
    if (pid === undefined) return null;
    const { name, user } = describeProcess(pid);
    return `${sanitize(name, 32)} (pid ${pid}, ${sanitize(user, 256)})`;
  }

  #hold(pid: number): HeldProcess | null {
    const known = this.#held.get(pid);
    return known?.isAlive === true ? known : HeldProcess.hold(pid);
  }

  #judge(
    gpu: GPUStatus,
    held: HeldProcess,
    { first, directory, began, cases, search }: Circumstances,
  ): Offence | null {
    const { pid, key, startTicks } = held;
    // A process that is younger than the driver's list isn't the one that the driver means.
    if (Number(startTicks) * TICK_MS >= began - TICK_MS) return null;
    const who = describeListedProcess(pid);
    const credentials = who.alive === 'alive' && who.name !== null ? credentialsOf(pid) : null;
    if (credentials === null || this.#isExempt(pid, credentials)) return null;
    const uid = credentials.uids[0] as number;
    const offence = {
      held,
      process: key,
      uid,
      gid: credentials.gid,
      user: userName(uid),
      name: who.name ?? 'a process',
      gpu: label(gpu),
    };
    if (directory === null) {
      // A GPU that may not be claimed is no matter of claims.
      const isBusy = gpu.state === 'busy' || gpu.state === 'leased';
      if (this.rules.claims !== 'required' || !isBusy) return null;
      return { ...offence, case: caseOf(uid, `${gpu.uuid} unclaimed`, key, cases), holder: null };
    }
    // Other tools' files don't prove whose a GPU is.
    if ((gpu.lease?.convention ?? 'gpu-owner') !== 'gpu-owner') return null;
    const ancestors = [...lineage(pid, MAX_ANCESTORS)];
    if (leaseOwners(directory, gpu, lockedFiles(undefined, ancestors)).length > 0) return null;
    const { files, missed } = search();
    const isMissed = (other: number) =>
      ancestors.includes(other) || credentialsOf(other)?.uids.some((each) => credentials.uids.includes(each));
    if (missed.some(isMissed)) return null;
    const owners = leaseOwners(directory, gpu, files);
    if (owners.length === 0 || owners.some((owner) => owner.uid === null)) return null;
    const holders = owners.flatMap((owner) => [owner.uid, ...(credentialsOf(owner.pid)?.uids ?? [])]);
    if (holders.some((holder) => holder !== null && credentials.uids.includes(holder))) return null;
    const starts = owners.map((owner) => `${readProcessStat(owner.pid)?.startTicks ?? 0}:${owner.pid}`);
    const [holder = ''] = starts.sort((a, b) => Number.parseInt(a, 10) - Number.parseInt(b, 10));
    // Shares come and go: together they are one holder.
    const whose = gpu.lease === null ? 'shared' : holder;
    const name = caseOf(uid, `${gpu.uuid} ${whose}`, key, cases);
    const leasedFirst = this.#leasedSince(gpu.uuid, whose);
    // A holder who has leased a GPU on which others computed, by --allow-processes, has agreed.
    const wasThere =
      first < leasedFirst || (first === leasedFirst && Number(startTicks) <= Number.parseInt(holder, 10));
    if (wasThere && cases[name]?.processes[key] === undefined) return null;
    return { ...offence, case: name, holder: owners[0]?.user ?? 'another user' };
  }

  /** The look in which a holder was first seen with its lease. */
  #leasedSince(uuid: string, holder: string): number {
    const lease = this.#leases.get(uuid);
    if (lease?.holder === holder) return lease.since;
    const since = lease?.holder === null ? lease.since : this.#look;
    this.#leases.set(uuid, { holder, since });
    return since;
  }

  #isExempt(pid: number, credentials: Credentials): boolean {
    const { uids, gids } = credentials;
    const { except, containers } = this.rules;
    if (uids.includes(0)) return true;
    if (!containers && !isUserKnown(pid, credentials)) return true;
    const named = uids.map((uid) => isUserOf(uid, except.users));
    const groups = except.groups.map(findGid);
    if (named.includes(true) || groups.some((gid) => gid !== null && gids.has(gid))) return true;
    // As long as a directory service doesn't answer, its users may be the exceptions.
    const isInDoubt = named.includes(null) || groups.includes(null);
    if (isInDoubt && !uids.every(isLocalUser)) return true;
    return isProgram(pid, [...except.programs, MPS_SERVER]);
  }

  release(): void {
    for (const process of this.#held.values()) process.release();
    this.#held.clear();
  }
}

const MPS_SERVER = 'nvidia-cuda-mps-server';

/** A process that is in a case stays in it, whichever uid it has now: in a user namespace it has many to choose from. */
function caseOf(uid: number, place: string, process: string, cases: Cases): string {
  const known = Object.entries(cases).find(
    ([name, { processes }]) => name.endsWith(` ${place}`) && processes[process] !== undefined,
  );
  return known?.[0] ?? `${uid} ${place}`;
}

/** Processes with few files come first: those of one user who opens a million must not hide the holders. */
function searchLocks(): Search {
  const size = (pid: number) =>
    Number(/^FDSize:\t(\d+)$/m.exec(readSmallFile(`/proc/${pid}/status`) ?? '')?.[1] ?? 0);
  const sized = processIds().map((pid) => ({ pid, size: size(pid) }));
  const pids = sized.sort((a, b) => a.size - b.size).map(({ pid }) => pid);
  return searchLockedFiles(TIMEOUTS.enforceSearch, pids);
}

function credentialsOf(pid: number): Credentials | null {
  const status = readSmallFile(`/proc/${pid}/status`) ?? '';
  const numbers = (name: string) =>
    (new RegExp(`^${name}:\\t(.*)$`, 'm').exec(status)?.[1] ?? '').split(/\s+/).filter(Boolean).map(Number);
  const uids = numbers('Uid');
  const [gid] = numbers('Gid');
  if (uids.length !== 4 || gid === undefined) return null;
  const maker = native().processNamespaceMaker(pid);
  // Root's are those of daemons, for any user.
  const hasOwnUsers = maker > 0;
  return {
    uids: hasOwnUsers ? [maker] : uids,
    hasOwnUsers,
    gid,
    // The user may have given up groups there.
    gids: new Set([...numbers('Gid'), ...numbers('Groups'), ...(hasOwnUsers ? groupsOf(maker) : [])]),
  };
}

/**
 * Whether a process's user is one of this machine's. A container has numbers of users of its own: its processes count for a
 * user only if that user has started it, without a daemon in between.
 */
function isUserKnown(pid: number, { uids, hasOwnUsers }: Credentials): boolean {
  const own = spacesOf(1) ?? spacesOf(process.pid);
  for (const at of lineage(pid, MAX_ANCESTORS)) {
    const found = spacesOf(at);
    if (found === null || own === null) return false;
    if (found === own) return credentialsOf(at)?.uids.includes(uids[0] as number) === true;
  }
  // An orphan: those of a daemon's containers have the daemon above them.
  return hasOwnUsers;
}

/** In which its numbers and paths are meant; null: that can't be read. */
function spacesOf(pid: number): string | null {
  // The main thread may have ended before others.
  for (const thread of [pid, ...threadsOf(pid)]) {
    const [numbers, paths] = ['pid', 'mnt'].map((kind) => readLink(`/proc/${thread}/ns/${kind}`));
    if (numbers && paths) return `${numbers} ${paths}`;
  }
  return null;
}

/**
 * Whether the program of a process is one of these, by its path or the last part of it. The kernel tells that: the name of a
 * process can have any name. Only root's programs count.
 */
function isProgram(pid: number, programs: readonly string[]): boolean {
  const path = readLink(`/proc/${pid}/exe`);
  if (path === null || !programs.some((name) => name === path || name === path.split('/').at(-1)))
    return false;
  const parts = path.split('/').map((_, i, all) => all.slice(0, i + 1).join('/') || '/');
  return parts.every((part) => {
    const status = statusOf(part);
    return status !== null && isRoot(status.uid) && (status.mode & 0o022) === 0;
  });
}
