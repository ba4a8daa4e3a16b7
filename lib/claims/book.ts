// Makes and cancels bookings.
import { closeSync } from 'node:fs';
import { GPUOwnerError } from '../errors.ts';
import { byPlace, type GPU, isDivided, isInstance } from '../gpus/index.ts';
import { native } from '../native.ts';
import {
  bootId,
  Directory,
  formatDuration,
  formatSince,
  MAX_TIME,
  machineUid,
  systemError,
  usageError,
  userName,
} from '../platform/index.ts';
import type { Candidate } from './evaluate.ts';
import { AcquisitionLock, LOCK_DIRECTORY_MODE, LockDirectory, ownRecord, runAsync } from './locks/index.ts';
import { evaluateMachine } from './machine-evaluation.ts';
import type { ClaimRequest } from './options.ts';
import {
  bookingLimit,
  bookingName,
  bookingRules,
  describeBooking,
  MAX_BOOKINGS,
  readBookingFiles,
  type StoredBooking,
  stampBookings,
  timesOf,
  whoMay,
} from './queue/index.ts';
import { asked, listReasons, refuseImpossible } from './refusal.ts';
import { type Booking, bookingsInForce } from './rules/index.ts';

const TMPFS = 0x01021994;

/** A booking as its user wants it. */
interface BookingWish {
  /** In ms since 1970. */
  from: number;
  until: number;
  /** When it begins again, for as long. */
  repeats: readonly number[];
  /** The user for whom they are; only root books for others. */
  uid: number;
  group: { gid: number; name: string } | null;
  note: string | null;
}

interface MadeBooking {
  booking: StoredBooking;
  gpus: GPU[];
  /** The GPUs that may still be in use when it begins, with the reasons. */
  inUse: Candidate[];
  /** Whether the file is gone after a reboot. */
  isVolatile: boolean;
}

/**
 * Books GPUs: those that will be free first.
 * @throws ERR_NOT_PERMITTED, ERR_INVALID_ARGUMENT, ERR_GPU_UNAVAILABLE where too many are booked already, ERR_LOCK_DIRECTORY
 */
export async function bookGPUs(request: ClaimRequest, wish: BookingWish): Promise<MadeBooking> {
  const maker = machineUid();
  const limit = bookingLimit(maker);
  if (limit === null)
    throw new GPUOwnerError(
      'ERR_NOT_PERMITTED',
      `${userName(maker)} may book no GPUs on this machine; ${whoMay(bookingRules())} may (\`bookings\` in the machine's configuration). Ask the administrator.`,
    );
  const { count } = request;
  if (count > limit.gpus)
    throw usageError(
      `${count} GPUs asked for, and ${userName(maker)} may book ${limit.gpus} at a time here (bookings.gpus in the configuration). Book fewer.`,
    );
  const end = Math.max(wish.from, ...wish.repeats) + wish.until - wish.from;
  if (end > Date.now() + limit.aheadMs)
    throw usageError(
      `the booking ends ${formatSince(end)}, and ${userName(maker)} may book for the next ${formatDuration(limit.aheadMs)} (bookings.ahead in the configuration). Book an earlier time.`,
    );
  if (end > MAX_TIME)
    throw usageError('the booking ends after the year 9999. Book a shorter or an earlier time.');
  return runAsync(
    (function* () {
      const found = yield* evaluateMachine(request, LockDirectory.open, 'machine');
      const { candidates, directory } = found;
      refuseImpossible(...asked({ ...found, candidates: candidates.filter(({ gpu }) => !isInstance(gpu)) }));
      const lock = yield* AcquisitionLock.take(directory, request.lockTimeout, ownRecord(bootId()));
      try {
        return book(candidates, count, directory, { ...wish, maker });
      } finally {
        lock.release();
      }
    })(),
  );
}

function book(
  candidates: readonly Candidate[],
  count: number,
  directory: LockDirectory,
  { maker, uid, group, from, until, repeats, note }: BookingWish & { maker: number },
): MadeBooking {
  const now = Date.now();
  const files = readBookingFiles(directory);
  const isOver = (old: StoredBooking) =>
    !files.some(({ id, path, until: end }) => id === old.id && path === old.path && end > now);
  for (const old of files) if (old.maker === maker && isOver(old)) removeFile(old, directory);
  const inForce = bookingsInForce(files, bookingLimit, now);
  const times = timesOf({ from, until, repeats });
  const overlapping = inForce.filter((other) =>
    times.some((time) => other.from < time.until && time.from < other.until),
  );
  const usable = candidates.filter(isBookable);
  const open = usable.filter(({ gpu }) => !overlapping.some(({ uuids }) => uuids.includes(gpu.uuid)));
  const isInUse = ({ lease, verdict }: Candidate) =>
    lease === null
      ? verdict.state === 'busy' || verdict.state === 'leased'
      : !(Date.parse(lease.until ?? '') <= from);
  const chosen = open
    .sort((a, b) => Number(isInUse(a)) - Number(isInUse(b)) || byPlace(a.gpu, b.gpu))
    .slice(0, count)
    .sort((a, b) => byPlace(a.gpu, b.gpu));
  if (chosen.length < count) throw notEnough(count, open.length, candidates, overlapping);
  const ids = new Set(readNames(directory));
  const { directory: target, isVolatile } = writableDirectory(directory);
  const stored = {
    ...(uid === maker ? {} : { uid }),
    ...(group === null ? {} : { gid: group.gid, group: group.name }),
    uuids: chosen.map(({ gpu }) => gpu.uuid),
    from,
    until,
    ...(repeats.length === 0 ? {} : { repeats }),
    ...(note === null ? {} : { note }),
  };
  for (let id = 1; id <= MAX_BOOKINGS; id++) {
    if (ids.has(bookingName(id))) continue;
    const booking: Booking = { ...stored, id, maker, uid, gid: group?.gid ?? null, madeAt: now };
    const all = times.map((time) => ({ ...booking, ...time }));
    const counting = bookingsInForce([...files, ...all], bookingLimit, now);
    if (all.some((each) => each.until > now && !counting.includes(each)))
      throw new GPUOwnerError(
        'ERR_GPU_UNAVAILABLE',
        `${userName(maker)} has booked other GPUs at that time, and may book ${bookingLimit(maker)?.gpus} at a time here (bookings.gpus in the configuration). \`gpu-owner bookings\` lists them.`,
      );
    const made = target.create(bookingName(id), Buffer.from(`${JSON.stringify({ id, ...stored })}\n`));
    if (made === -EEXIST) continue;
    if (made < 0)
      throw new GPUOwnerError(
        'ERR_LOCK_DIRECTORY',
        `the booking can't be written to ${target.path}: ${systemError(-made)}. Run \`gpu-owner doctor\`.`,
      );
    closeSync(made);
    stampBookings(directory);
    const entry = { user: userName(uid), group: group?.name ?? null, note, path: target.path };
    return {
      booking: { ...booking, ...entry },
      gpus: chosen.map(({ gpu }) => gpu),
      inUse: chosen.filter(isInUse),
      isVolatile,
    };
  }
  throw new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    `no number is left for a booking: there are ${MAX_BOOKINGS} files booking-* in ${directory.path}; \`ls -l\` shows whose. As root, remove those that \`gpu-owner bookings\` doesn't list.`,
  );
}

const EEXIST = 17;

/** Whole GPUs are booked, with all their instances. */
function isBookable({ gpu, verdict }: Candidate): boolean {
  if (isInstance(gpu) || gpu.uuid === '' || verdict.state === 'excluded') return false;
  return verdict.state !== 'unavailable' || (isDivided(gpu) && gpu.migInstances.length > 0);
}

function notEnough(
  count: number,
  open: number,
  candidates: readonly Candidate[],
  overlapping: readonly StoredBooking[],
): GPUOwnerError {
  const reasons = candidates
    .filter(({ gpu }) => !isInstance(gpu))
    .map((candidate) => {
      const { gpu, verdict } = candidate;
      const other = overlapping.find(({ uuids }) => uuids.includes(gpu.uuid));
      const reason =
        other !== undefined ? describeBooking(other) : isBookable(candidate) ? 'can be booked' : '';
      return { index: gpu.index, uuid: gpu.uuid, reason: reason || (verdict.reason ?? "can't be booked") };
    });
  const have = open === 0 ? 'none' : `only ${open}`;
  return new GPUOwnerError(
    'ERR_GPU_UNAVAILABLE',
    `${count === 1 ? 'a GPU' : `${count} GPUs`} asked for, and ${have} can be booked at that time${listReasons(reasons)}`,
    { gpus: reasons },
  );
}

/** Every name in the directories, since files of others needn't be bookings. */
function readNames(directory: LockDirectory): string[] {
  return directory.all.flatMap((path) => directory.namesIn(path));
}

/** The directory for the file: of the two standard places the one that survives a reboot. */
function writableDirectory(directory: LockDirectory): { directory: Directory; isVolatile: boolean } {
  const isVolatile = (path: string) => native().fileSystemType(path) === TMPFS;
  const paths = [directory.path, ...directory.others];
  const opened = paths.map((path) => Directory.open(path, LOCK_DIRECTORY_MODE));
  const usable = opened.filter((each) => typeof each !== 'number');
  const lasting = usable.find(({ path }) => !isVolatile(path));
  const chosen = lasting ?? usable[0];
  if (chosen === undefined)
    throw new GPUOwnerError(
      'ERR_LOCK_DIRECTORY',
      `${directory.path} can't be opened. Run \`gpu-owner doctor\`.`,
    );
  return { directory: chosen, isVolatile: lasting === undefined };
}

function removeFile({ id, path }: StoredBooking, directory: LockDirectory): void {
  for (const descriptor of directory.filesNamed(bookingName(id), [path]))
    directory.remove(bookingName(id), descriptor, path);
}

/** Cancels a booking of this user; root cancels any. @throws ERR_INVALID_ARGUMENT, ERR_NOT_PERMITTED */
export function cancelBooking(directory: LockDirectory | null, id: number): void {
  const found = readBookingFiles(directory).filter((each) => each.id === id);
  const [first] = found;
  if (directory === null || first === undefined)
    throw usageError(`there is no booking ${id}; \`gpu-owner bookings\` lists them`);
  const maker = machineUid();
  const own = found.filter((each) => maker === 0 || each.maker === maker);
  if (own.length === 0) {
    const user = userName(first.maker);
    const who = first.maker === 0 ? user : `${user} and root`;
    throw new GPUOwnerError('ERR_NOT_PERMITTED', `booking ${id} is ${user}'s: only ${who} can cancel it.`);
  }
  for (const each of own) removeFile(each, directory);
  stampBookings(directory);
}
