// Runs once before all tests: they start the built command and load the built addon, so say clearly when there is none, or an old one.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';

const root = resolve(import.meta.dirname, '../..');
const BINARIES = [
  'gpu_owner.node',
  'gpu-owner-keeper',
  'gpu-owner-placeholder',
  'gpu-owner-simulator',
  'simulator/libnvidia-ml.so.1',
  'simulator/libcuda.so.1',
  'simulator/bin/nvidia-smi',
];

/** The last change of a file, in ms since 1970; 0: there is none. */
function changedAt(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}

/**
 * Finds a source of the native part that was changed after all binaries, and after the start of the last `npm run install`; null: there is
 * none.
 * @param clone a directory with `native/`, `simulator/`, `binding.gyp` and `build/`
 */
export function newerSource(clone: string): string | null {
  const sources = ['native', 'simulator']
    .flatMap((room) =>
      readdirSync(join(clone, room), { recursive: true, encoding: 'utf8' }).map((path) => join(room, path)),
    )
    .filter((path) => /\.(cc|h|map|json)$/.test(path) && !path.startsWith('native/tests/'));
  const outputs = [...BINARIES.map((name) => join('build/Release', name)), 'build/installed'];
  const built = Math.max(...outputs.map((path) => changedAt(join(clone, path))));
  return [...sources, 'binding.gyp'].find((path) => changedAt(join(clone, path)) > built) ?? null;
}

export default function setup(): void {
  const directory = process.env.GPU_OWNER_BUILD ?? join(root, 'build/Release');
  const missing = BINARIES.map((name) => join(directory, name)).filter((path) => !existsSync(path));
  const outputs = ['dist/index.js', 'dist/library.cjs', 'dist/gpu-owner.cjs'].map((path) => join(root, path));
  const unbuilt = outputs.filter((path) => !existsSync(path));
  if (missing.length > 0) {
    throw new Error(`not built: ${missing.join(', ')}\nBuild the native part first: npm run build:native`);
  }
  if (unbuilt.length > 0) {
    throw new Error(`not built: ${unbuilt.join(', ')}\nBuild the TypeScript part first: npm run build:ts`);
  }
  const newer = process.env.GPU_OWNER_BUILD === undefined ? newerSource(root) : null;
  if (newer !== null) {
    throw new Error(
      `${newer} is newer than the binaries in ${directory}\nCompile what changed: npm run install`,
    );
  }
}
