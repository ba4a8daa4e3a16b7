import { join, resolve } from 'node:path';

/** The directory of the native binaries under test: GPU_OWNER_BUILD, or what `npm run build:native` makes. */
export function binaries(): string {
  return resolve(process.env.GPU_OWNER_BUILD ?? join(import.meta.dirname, '../../build/Release'));
}
