// Runs once before all tests: they start the built command and load the built addon, so say clearly when there is none.
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';

const root = resolve(import.meta.dirname, '../..');
const BINARIES = [
  'gpu_owner.node',
  'gpu-owner-keeper',
  'gpu-owner-placeholder',
  'gpu-owner-waiter',
  'gpu-owner-simulator',
  'simulator/libnvidia-ml.so.1',
  'simulator/libcuda.so.1',
  'simulator/bin/nvidia-smi',
];

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
}
