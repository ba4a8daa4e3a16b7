import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { binaries } from './binaries.ts';
import { because, compileLibrary, noCompiler } from './doctor.ts';

export { because, noCompiler };

const fixture = (name: string) => join(import.meta.dirname, '../integration/fixtures', name);

/** Compiles the library that does what real ones do when they are loaded, see fixtures/nvml_library.c. @returns its path */
export function compileDriverLibrary(directory: string): string {
  const behind = resolve(binaries(), 'simulator/libnvidia-ml.so.1');
  const { stdout } = spawnSync('nm', ['-D', '--defined-only', behind], { encoding: 'utf8' });
  const names = [...stdout.matchAll(/ T (nvml\w+)$/gm)].map(([, name]) => name);
  writeFileSync(join(directory, 'functions.h'), names.map((name) => `FUNCTION(${name})\n`).join(''));
  const path = join(directory, 'libnvidia-ml.so.1');
  compileLibrary(fixture('nvml_library.c'), path, ['-O1', `-I${directory}`, `-DBEHIND="${behind}"`]);
  return path;
}

/** Compiles the addon that uses NVML beside us, see fixtures/other_nvml_user.c. @returns its path */
export function compileOtherUser(directory: string): string {
  const path = join(directory, 'other-nvml-user.node');
  compileLibrary(fixture('other_nvml_user.c'), path);
  return path;
}
