// What `import 'gpu-owner'` loads: the library itself, index.ts, is a bundle beside this file, as compiling it takes longer than a
// claim.
import { runBundle } from './bundle.ts';

let packageRequire: NodeJS.Require | undefined;

/** Node.js's own takes milliseconds until it is there, and only packages need it. */
function require(id: string): unknown {
  if (id.startsWith('node:')) return process.getBuiltinModule(id);
  if (id.endsWith('.node')) {
    const addon = { exports: {} };
    process.dlopen(addon, id);
    return addon.exports;
  }
  packageRequire ??= process.getBuiltinModule('node:module').createRequire(import.meta.filename);
  return packageRequire(id);
}

export const { findFreeGPUs, findFreeGPUsSync, getGPUs, getGPUsSync, getQueue, GPUOwner, GPUOwnerError } =
  runBundle('library', import.meta.dirname, require) as typeof import('./index.ts');
