import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { buildSync } from 'esbuild';
import { root } from '../machine.ts';

/** A TypeScript program of the tests as one file that Node.js runs, in a directory that goes with the test process. */
export function bundle(path: string): string {
  const { dependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bundle-'));
  process.once('exit', () => rmSync(directory, { recursive: true, force: true }));
  const outfile = join(directory, `${basename(path, '.ts')}.cjs`);
  buildSync({
    entryPoints: [path],
    outfile,
    bundle: true,
    platform: 'node',
    target: 'node20.19',
    format: 'cjs',
    external: Object.keys(dependencies),
    // What is looked for from there on (dependencies, the addon) is where the built command finds it.
    define: {
      'import.meta.dirname': JSON.stringify(join(root, 'dist')),
      'import.meta.filename': JSON.stringify(join(root, 'dist', basename(outfile))),
    },
    logLevel: 'error',
  });
  return outfile;
}
