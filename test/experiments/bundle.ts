import { mkdtempSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { buildSync } from 'esbuild';
import { inject } from 'vitest';
import { root } from '../support/machine.ts';

/** A TypeScript program of the tests as one file that Node.js runs, in a directory that goes when all tests have run. */
export function bundle(path: string): string {
  const { dependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const directory = mkdtempSync(join(inject('bundles'), 'bundle-'));
  const outfile = join(directory, `${basename(path, '.ts')}.cjs`);
  buildSync({
    entryPoints: [path],
    outfile,
    bundle: true,
    platform: 'node',
    target: 'node20.19',
    format: 'cjs',
    external: Object.keys(dependencies),
    // Files that are found from there (dependencies, the addon) are where the built command finds them.
    define: {
      'import.meta.dirname': JSON.stringify(join(root, 'dist')),
      'import.meta.filename': JSON.stringify(join(root, 'dist', basename(outfile))),
    },
    logLevel: 'error',
  });
  return outfile;
}
