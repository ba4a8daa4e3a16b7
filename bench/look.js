// The library's own look at the GPUs, without what a claim adds to it. It is internal, so it is bundled for the benchmark.
import { mkdtempSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { build } from 'esbuild';

export async function getLook() {
  const root = dirname(import.meta.dirname);
  const directory = mkdtempSync(join(root, 'build', 'bench-'));
  const outfile = join(directory, 'look.mjs');
  await build({
    entryPoints: [join(root, 'lib/gpus/snapshot.ts')],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    external: ['node-gyp-build', 'yaml'],
    define: { 'import.meta.dirname': JSON.stringify(join(root, 'lib')) },
    logLevel: 'silent',
  });
  const { lookSync } = await import(outfile);
  return lookSync;
}
