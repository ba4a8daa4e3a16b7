// How the GPUs are connected, remembered per boot: asking the driver costs some microseconds for each pair of GPUs and each
// NVLink. Each user has a file of their own in the lock directory. A claim believes its own user's and root's.
import { closeSync } from 'node:fs';
import {
  type GPU,
  isInstance,
  isTopologyOf,
  readTopology,
  type Topology,
  UNKNOWN,
} from '../../gpus/index.ts';
import { native } from '../../native.ts';
import { bootId, Directory, fnv1a, readBlock, schema } from '../../platform/index.ts';
import type { LockDirectory } from './lock-directory.ts';

/** 64 GPUs have 2,016 pairs. */
const MAX_BYTES = 64 * 1024;

/** 64 GPUs have 6,048 numbers: `listOf` names each. */
const numbers: schema.Check<number[]> = (value, path) => {
  if (Array.isArray(value) && value.every((each) => Number.isSafeInteger(each))) return value;
  throw new schema.Mismatch(path);
};
const number = schema.amount(Number.MAX_SAFE_INTEGER, -1);
const STORED = schema.jsonOf(
  schema.record({
    boot: schema.text,
    driver: schema.text,
    uuids: schema.listOf(schema.text),
    places: schema.listOf(
      schema.record({
        cpus: numbers,
        nodes: numbers,
        active: number,
        inactive: number,
      }),
    ),
    links: numbers,
  }),
);

let known: Topology | null = null;

/**
 * How the GPUs of a snapshot are connected; null: the driver doesn't tell. Asks the driver once per boot and user, or each
 * process where no file can be made.
 * @param directory null: there is none yet
 */
export function topologyOf(directory: LockDirectory | null, gpus: readonly GPU[]): Topology | null {
  const uuids = gpus.filter((gpu) => !isInstance(gpu)).map(({ uuid }) => uuid);
  if (known !== null && isSame(known.uuids, uuids)) return known;
  const boot = bootId();
  const driver = native().driverLibrary().version;
  const own = process.geteuid?.() ?? 0;
  for (const uid of new Set([0, own])) {
    known = directory === null ? null : read(directory, uid, { boot, driver, uuids });
    if (known !== null) return known;
  }
  known = readTopology();
  // What a GPU didn't tell that was silent for a moment is asked again.
  const isWhole = known?.links.includes(UNKNOWN) === false;
  if (known !== null && directory !== null && isWhole && isSame(known.uuids, uuids))
    write(directory, nameOf(own, uuids), JSON.stringify({ boot, driver, ...known }));
  return known;
}

function isSame(some: readonly string[], others: readonly string[]): boolean {
  return some.length === others.length && some.every((uuid, i) => uuid === others[i]);
}

/** A container sees other GPUs than the host does. */
function nameOf(uid: number, uuids: readonly string[]): string {
  return `topology-${uid}-${fnv1a(Buffer.from(uuids.join()))}`;
}

function read(
  directory: LockDirectory,
  uid: number,
  { boot, driver, uuids }: { boot: string; driver: string; uuids: readonly string[] },
): Topology | null {
  for (const { descriptor, status } of directory.filesOfOwners(nameOf(uid, uuids), [directory.path])) {
    if (status.uid !== uid || status.size > MAX_BYTES) continue;
    const stored = schema.readAs(STORED, readBlock(descriptor, MAX_BYTES).toString());
    if (stored === null || stored.boot !== boot || stored.driver !== driver) continue;
    if (isSame(stored.uuids, uuids) && isTopologyOf(uuids, stored)) return stored;
  }
  return null;
}

/** In place of one of an earlier boot. Another user may have taken the name: then each process asks the driver. */
function write(directory: LockDirectory, name: string, text: string): void {
  for (const descriptor of directory.filesNamed(name, [directory.path])) directory.remove(name, descriptor);
  const descriptor = Directory.at(directory.path)?.create(name, Buffer.from(text)) ?? -1;
  if (descriptor >= 0) closeSync(descriptor);
}
