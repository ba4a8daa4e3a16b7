// The turns of users: a file per user in the lock directory has the largest start and end of that user's granted requests, and outlives
// the user's leases. The file's owner proves whose it is. A forged one makes newcomers later, and no more.
import { loadConfiguration, simulatedMachine } from '../../config/index.ts';
import { native } from '../../native.ts';
import { bootId, bootMilliseconds, readBlock, statusBehind } from '../../platform/index.ts';
import { ledgerDirectory, meanHours } from '../../usage/index.ts';
import type { LockDirectory, RecordContents } from '../locks/index.ts';
import {
  isMispriced,
  type JoiningRequest,
  type Place,
  parseTag,
  type RequestClass,
  repriced,
  type Tag,
  type Turn,
  tagFor,
  turnAfter,
} from '../rules/index.ts';
import { changeTags } from './queue-file.ts';
import { type QueuePosition, WaitQueue } from './wait-queue.ts';

const NAME = /^turn-(\d{1,10})$/;
const FOR_ALL_TO_READ = 0o644;
/** How many users' files are read. */
const MAX_USERS = 1_000;
/** Two numbers for each class that has turns, after the boot that they belong to. */
const CLASSES = ['normal', 'preemptible'] as const satisfies readonly RequestClass[];
const DIGITS = 16;
const LINE = /^([\w-]+) (\d{16}) (\d{16}) (\d{16}) (\d{16})\n$/;
const MAX_BYTES = 128;

type ClassWithTurns = (typeof CLASSES)[number];
type Turns = Record<ClassWithTurns, Turn>;
type Requester = Pick<RecordContents, 'uid' | 'limitMs'>;

/** The tag of a request that joins the queue, or is granted without that. @param others that wait */
export function newTag(
  directory: LockDirectory,
  { uid, limitMs }: Requester,
  { class: own, count, size = count, scope }: JoiningRequest,
  others: readonly Place[],
  expected = () => hoursOf(directory, uid),
): Tag {
  const order = orderOfQueue();
  const kind = classWithTurns(own);
  const hasTurns = scope === null && order === 'fair' && kind !== undefined;
  const hours = hasTurns ? Math.min(expected(), hoursAllowed(limitMs)) : 0;
  const granted = hasTurns ? grantedOf(directory, kind) : new Map<number, Turn>();
  const joining = { class: own, uid: scope === null ? uid : null, size, hours };
  const waiting = others.flatMap(({ tag }) => (tag === null ? [] : [tag]));
  return tagFor(joining, waiting, granted, bootMilliseconds(), order);
}

/**
 * Notes that a request was granted, if users take turns, and gives this user's waiting requests new tags where more is known now of how long the user's jobs
 * last. For the holder of the decision lock: one process writes at a time.
 * @param position the request's place in the wait queue; null: it has none
 */
export function noteGranted(
  directory: LockDirectory,
  requester: Requester,
  request: JoiningRequest,
  position: QueuePosition | null,
): void {
  const kind = classWithTurns(request.class);
  if (kind === undefined || request.scope !== null || orderOfQueue() !== 'fair') return;
  const queue = WaitQueue.open(directory);
  const descriptor = directory.openOwn(`turn-${requester.uid}`, FOR_ALL_TO_READ);
  try {
    if (statusBehind(descriptor)?.uid !== requester.uid) return; // its requests count as a newcomer's
    const slot = position?.slot ?? null;
    const expected = hoursOf(directory, requester.uid);
    const tag =
      (slot === null ? parseTag(request.order ?? '') : queue?.tag(slot)) ??
      newTag(directory, requester, request, queue?.places() ?? [], () => expected);
    const { count, size = count } = request;
    const hours = Math.min(expected, hoursAllowed(requester.limitMs));
    const turns = readTurns(descriptor, requester.uid) ?? {
      normal: { start: 0, end: 0 },
      preemptible: { start: 0, end: 0 },
    };
    turns[kind] = turnAfter(turns[kind], tag, size, hours);
    writeTurns(descriptor, turns);
    if (slot !== null && queue !== null && isMispriced(tag, size, hours))
      reprice(directory, queue, slot, requester.uid, kind, expected);
  } finally {
    queue?.close();
    if (descriptor >= 0) native().fileClose(descriptor);
  }
}

function reprice(
  directory: LockDirectory,
  queue: WaitQueue,
  served: number,
  uid: number,
  kind: ClassWithTurns,
  expected: number,
): void {
  const granted = grantedOf(directory, kind);
  const time = Math.max(0, ...[...granted.values()].map(({ start }) => start));
  changeTags(directory, (write) => {
    const own = [...queue.waiters(queue.order())].flatMap(({ slot, scope, tag, size, limitMs }) => {
      if (slot === served || scope !== null || tag?.uid !== uid || tag.class !== kind) return [];
      return [{ slot, tag, size, hours: Math.min(expected, hoursAllowed(limitMs)) }];
    });
    const tags = repriced(own, granted.get(uid)?.end ?? 0, time);
    for (const [i, { slot, tag }] of own.entries()) write(slot, tags[i] ?? tag);
  });
}

function orderOfQueue() {
  return loadConfiguration().order ?? 'fair';
}

/** The granted turns, by uid. */
function grantedOf(directory: LockDirectory, kind: ClassWithTurns): Map<number, Turn> {
  const granted = new Map<number, Turn>();
  for (const name of directory.namesIn(directory.path)) {
    const uid = Number(NAME.exec(name)?.[1] ?? Number.NaN);
    if (Number.isNaN(uid)) continue;
    if (granted.size >= MAX_USERS) break;
    const descriptor = directory.openForProbe(name);
    if (descriptor < 0) continue;
    const turns = readTurns(descriptor, uid);
    native().fileClose(descriptor);
    if (turns !== null) granted.set(uid, turns[kind]);
  }
  return granted;
}

/** null: the file isn't that user's, or not of this boot. */
function readTurns(descriptor: number, uid: number): Turns | null {
  const status = statusBehind(descriptor);
  if (status === null || status.uid !== uid || status.links !== 1) return null;
  const [, boot, ...numbers] = LINE.exec(readBlock(descriptor, MAX_BYTES).toString('latin1')) ?? [];
  if (boot !== bootId()) return null;
  const [start = 0, end = 0, preemptibleStart = 0, preemptibleEnd = 0] = numbers.map(Number);
  return { normal: { start, end }, preemptible: { start: preemptibleStart, end: preemptibleEnd } };
}

function writeTurns(descriptor: number, turns: Turns): void {
  const numbers = CLASSES.flatMap((each) => [turns[each].start, turns[each].end]);
  const words = [bootId(), ...numbers.map((each) => String(each).padStart(DIGITS, '0'))];
  native().fileWriteBlock(descriptor, Buffer.from(`${words.join(' ')}\n`));
}

function classWithTurns(own: RequestClass): ClassWithTurns | undefined {
  return CLASSES.find((each) => each === own);
}

function hoursAllowed(limitMs: number | null | undefined): number {
  return limitMs == null ? Number.POSITIVE_INFINITY : limitMs / 3_600_000;
}

/** How long the user's jobs last, in hours, as far as the ledger tells; 0: it doesn't. */
function hoursOf(directory: LockDirectory, uid: number): number {
  const path = ledgerDirectory(directory.path, simulatedMachine() !== null);
  return (path === null ? null : meanHours(path, uid)) ?? 0;
}
