// The work of contention.c in JavaScript: the same system calls by node:fs, locks by functions of the addon that make one call
// each, and nothing else: no driver, no judgement, no reasons, no record but a fixed block. The time beyond C is Node.js; the
// time of gpu-owner beyond this is gpu-owner.
import {
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  readSync,
  writeSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { built } from '../measure.js';

const { lockProbe, lockTry, lockWaitSync } = createRequire(import.meta.url)(join(built, 'gpu_owner.node'));
const [FLOCK, OFD, SHARED, EXCLUSIVE] = [0, 1, 0, 1];
const { O_CREAT, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_RDWR } = constants;
const CAREFUL = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
const LONG = 60_000; // ms

const record = Buffer.alloc(4096, ' ');
const epoch = Buffer.alloc(32);

function opened(path, access) {
  const file = openSync(path, access | CAREFUL, 0o666);
  if (!fstatSync(file).isFile()) throw new Error(path);
  return file;
}

function isNamed(file, path) {
  return fstatSync(file).ino === lstatSync(path).ino;
}

function isFree(path) {
  const file = opened(path, O_RDONLY);
  const answer = lockProbe(file, OFD, EXCLUSIVE, 0, 1) < 0;
  closeSync(file);
  return answer;
}

/** @returns claim(generation) -> { gpu, file }, or null: none is free; and release(claim) */
export function openClaims(directory, gpus) {
  mkdirSync(directory, { recursive: true });
  const acquisition = join(directory, 'acquisition.lock');
  const leases = Array.from({ length: gpus }, (_, gpu) => join(directory, `gpu-${gpu}.lease`));
  for (const path of [acquisition, ...leases]) closeSync(opened(path, O_RDWR | O_CREAT));

  function lease(generation) {
    let gpu = -1;
    for (let i = 0; i < gpus; i++) if (isFree(leases[i]) && gpu < 0) gpu = i;
    if (gpu < 0) return null;
    const file = opened(leases[gpu], O_RDWR);
    if (lockTry(file, OFD, EXCLUSIVE, 0, 1) !== 0 || !isNamed(file, leases[gpu])) {
      closeSync(file);
      return null;
    }
    lockTry(file, OFD, EXCLUSIVE, 1 + generation, 1);
    lockTry(file, FLOCK, SHARED, 0, 0);
    writeSync(file, record, 0, record.length, 0);
    return { gpu, file };
  }

  return {
    claim(generation) {
      let any = false;
      for (const path of leases) any = isFree(path) || any;
      if (!any) return null;
      const file = opened(acquisition, O_RDWR);
      readSync(file, epoch, 0, epoch.length, record.length - epoch.length);
      const error = lockWaitSync(file, OFD, EXCLUSIVE, 0, 1, LONG);
      readSync(file, epoch, 0, epoch.length, record.length - epoch.length);
      if (error !== 0 || !isNamed(file, acquisition)) throw new Error(`the lock can't be had: ${error}`);
      writeSync(file, record, 0, record.length, 0);
      const held = lease(generation);
      closeSync(file);
      return held;
    },
    release({ file }) {
      writeSync(file, record, 0, record.length, 0);
      closeSync(file);
    },
  };
}
