// The file that `import 'gpu-owner'` loads: the library itself, index.ts, is a bundle beside this file, as compiling it takes
// longer than a claim.
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

/** Why the library can't work in this runtime; null: nothing is known against it. Says what bin/gpu-owner.cjs says. */
function whyNotHere(): string | null {
  const { node, deno } = process.versions;
  const needed = 'Node.js 20.19, or 22.3 or newer';
  if (deno !== undefined) return `Deno ${deno} can't run gpu-owner, which needs ${needed}.`;
  const [major = 0, minor = 0] = node.split('.').map(Number);
  // Before 22.3, and in 21, there is no process.getBuiltinModule.
  const isOld = major < 20 || major === 21 || (major === 20 && minor < 19) || (major === 22 && minor < 3);
  return isOld ? `Node.js ${node} (${process.execPath}) is too old: gpu-owner needs ${needed}.` : null;
}

const why = whyNotHere();
if (why !== null) throw Object.assign(new Error(why), { code: 'ERR_UNSUPPORTED_PLATFORM' });

export const { findFreeGPUs, findFreeGPUsSync, getGPUs, getGPUsSync, getQueue, GPUOwner, GPUOwnerError } =
  runBundle('library', import.meta.dirname, require) as typeof import('./index.ts');
