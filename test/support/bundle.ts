import { execFile } from 'node:child_process';
import { chmodSync, mkdtempSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { buildSync } from 'esbuild';
import { inject } from 'vitest';
import { root, wrapped } from './machine.ts';

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
  chmodSync(directory, 0o755);
  chmodSync(outfile, 0o644);
  return outfile;
}

const CALL = `
  const [program, name, args] = process.argv.slice(1);
  const called = (async () => require(program)[name](...JSON.parse(args)))();
  called
    .then((value) => ({ value }), ({ code, message }) => ({ error: { code, message } }))
    .then((outcome) => {
      process.stdout.write(JSON.stringify(outcome));
      process.exit();
    });
`;

/**
 * Calls functions of a TypeScript module as another user, each in a process of its own: Node.js with io_uring, such as Debian's,
 * refuses seteuid(). Arguments, results and errors travel as JSON. Needs whyNotNobody() to be null.
 * @param path the module, below the package
 */
export function actAs<Module extends object>(uid: number, path: string) {
  let program: string | undefined;
  // biome-ignore lint/suspicious/noExplicitAny: any function of the module
  type Callable<Name extends keyof Module> = Module[Name] extends (...args: any) => any
    ? Module[Name]
    : never;
  return async <Name extends keyof Module & string>(
    name: Name,
    ...args: Partial<Parameters<Callable<Name>>>
  ): Promise<Awaited<ReturnType<Callable<Name>>>> => {
    program ??= bundle(join(root, path));
    const words = [process.execPath, '-e', CALL, program, name, JSON.stringify(args)];
    const { stdout } = await promisify(execFile)(...wrapped(words, { uid }));
    const { value, error } = JSON.parse(stdout);
    if (error) throw Object.assign(new Error(error.message), { code: error.code });
    return value;
  };
}
