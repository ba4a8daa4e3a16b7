// The GPUs on which CUDA failed, as all users of the machine remember them. Each note is a file in the lock directory, whose owner has
// made it; a note is never changed, only replaced. Whom a claim believes is decided by `suspectsIn`.
import { closeSync } from 'node:fs';
import type { GPUOwnerError } from '../../errors.ts';
import { type CudaNote, cudaCode, type GPU, SUSPECT_MS, type Suspect, suspectsIn } from '../../gpus/index.ts';
import type { PlaceholderFailure } from '../../native.ts';
import {
  Directory,
  MAX_TIME,
  now,
  pathIn,
  readBlock,
  schema,
  statusOf,
  TIMEOUTS,
} from '../../platform/index.ts';
import type { LockDirectory } from './lock-directory.ts';

/** Is there once there has been a note: claims look for this name alone, instead of at all. */
const MARKER = 'suspects';
/** The name is random, so that other users can't have taken it. */
const NAME = /^suspect-[0-9a-f]{1,12}$/;
const MAX_BYTES = 512;
/** Upper bound on the files that a reader opens: any user can create more. */
const MAX_FILES = 256;
/** How long a process leaves out a GPU that isn't at fault, at first, in ms: each time twice as long, up to `retryGPU`. */
const FIRST_RETRY_MS = 1_000;

const NOTE = schema.jsonOf(
  schema.record({
    uuid: schema.matching(/^[A-Za-z0-9-]{1,96}$/),
    code: schema.whole(9_999),
    since: schema.whole(MAX_TIME),
    at: schema.whole(MAX_TIME),
  }),
);

const ownUid = () => process.geteuid?.() ?? 0;

/** The GPUs on which CUDA failed lately, by UUID. Costs one call where there were never any. */
export function readSuspects(directory: LockDirectory | null): ReadonlyMap<string, Suspect> {
  const notes = readNotes(directory).map(({ note }) => note);
  return notes.length === 0 ? NONE : suspectsIn(notes, ownUid(), Date.now());
}

const NONE: ReadonlyMap<string, Suspect> = new Map();

interface NoteFile {
  name: string;
  note: CudaNote;
}

function readNotes(directory: LockDirectory | null): NoteFile[] {
  if (directory === null || statusOf(pathIn(directory.path, MARKER)) === null) return [];
  const names = directory.namesIn(directory.path).filter((name) => NAME.test(name));
  const found: NoteFile[] = [];
  for (const name of names.slice(0, MAX_FILES)) {
    for (const { descriptor, status } of directory.filesOfOwners(name, [directory.path])) {
      if (status.size > MAX_BYTES) continue;
      const stored = schema.readAs(NOTE, readBlock(descriptor, MAX_BYTES).toString());
      if (stored === null) continue;
      // The file itself is as old as its note at least.
      const at = Math.min(stored.at, Math.floor(status.changedAt));
      found.push({ name, note: { ...stored, at, since: Math.min(stored.since, at), uid: status.uid } });
    }
  }
  return found;
}

/** A GPU on which CUDA has failed for this process. */
export interface LeftOut {
  /** When this process may try it again, on the monotonic clock. */
  until: number;
  pauseMs: number;
  error: GPUOwnerError;
}

const leftOut = new Map<string, LeftOut>();

/** Notes what a look at CUDA on a GPU has shown. @param failure null: it works */
export function noteCUDA(
  directory: LockDirectory,
  { uuid }: Pick<GPU, 'uuid'>,
  failure: Pick<PlaceholderFailure, 'code'> | null,
): void {
  if (failure === null) noteSuccess(directory, uuid);
  else if (cudaCode(failure.code).blames === 'gpu') writeFailure(directory, uuid, failure.code);
}

/**
 * Has this process leave out a GPU for a while, and notes that CUDA failed there, if that is the GPU's fault. Where no file can be
 * made, only this process remembers.
 */
export function leaveOut(
  directory: LockDirectory,
  gpu: Pick<GPU, 'uuid'>,
  failure: Pick<PlaceholderFailure, 'code'>,
  error: GPUOwnerError,
): void {
  const { uuid } = gpu;
  const isAtFault = cudaCode(failure.code).blames === 'gpu';
  const last = leftOut.get(uuid)?.pauseMs ?? FIRST_RETRY_MS / 2;
  const pauseMs = isAtFault ? TIMEOUTS.retryGPU : Math.min(2 * last, TIMEOUTS.retryGPU);
  leftOut.set(uuid, { until: now() + pauseMs, pauseMs, error });
  noteCUDA(directory, gpu, failure);
}

function writeFailure(directory: LockDirectory, uuid: string, code: number): void {
  const before = ownNotes(directory).find(({ note }) => note.uuid === uuid && note.code !== 0)?.note;
  const at = Date.now();
  replaceNote(directory, { uuid, code, since: before?.since ?? at, at });
}

function noteSuccess(directory: LockDirectory, uuid: string): void {
  const at = Date.now();
  const uid = ownUid();
  const others = readNotes(directory).filter(({ note }) => note.uuid === uuid && note.uid !== uid);
  if (uid === 0 || others.length === 0) removeNotes(directory, uuid);
  else replaceNote(directory, { uuid, code: 0, since: at, at });
}

/** CUDA works on a GPU for this process. */
export function takeInAgain(uuid: string): void {
  leftOut.delete(uuid);
}

/** Why this process leaves out a GPU for now; null: it doesn't. */
export function whyLeftOut(uuid: string): LeftOut | null {
  const found = leftOut.get(uuid);
  return found === undefined || found.until <= now() ? null : found;
}

function ownNotes(directory: LockDirectory): NoteFile[] {
  return readNotes(directory).filter(({ note }) => note.uid === ownUid());
}

function replaceNote(directory: LockDirectory, note: Omit<CudaNote, 'uid'>): void {
  const before = ownNotes(directory);
  const opened = Directory.at(directory.path);
  const marker = directory.openIfPossible(MARKER);
  if (marker >= 0) closeSync(marker);
  const name = `suspect-${Math.floor(Math.random() * 2 ** 48).toString(16)}`;
  const descriptor = opened?.create(name, Buffer.from(JSON.stringify(note))) ?? -1;
  if (descriptor < 0) return;
  closeSync(descriptor);
  removeFiles(directory, before, note.uuid);
}

/** Removes this user's notes on a GPU; root removes everybody's. */
function removeNotes(directory: LockDirectory, uuid: string): void {
  const uid = ownUid();
  removeFiles(
    directory,
    readNotes(directory).filter(({ note }) => uid === 0 || note.uid === uid),
    uuid,
  );
}

/** And notes that no longer count. */
function removeFiles(directory: LockDirectory, files: readonly NoteFile[], uuid: string): void {
  for (const { name, note } of files) {
    if (note.uuid !== uuid && Date.now() - note.at < SUSPECT_MS) continue;
    for (const descriptor of directory.filesNamed(name, [directory.path])) directory.remove(name, descriptor);
  }
}
