// The entry of the command: runs command.cjs, which lies beside it, or for experiments the larger experiments.cjs, which has
// everything; from V8's own compiled form where there is one. That saves some 10 ms at each start. Node.js 22 has
// module.enableCompileCache for this, Node.js 20 doesn't. `import()` of what isn't bundled can't work in there: packages that
// are ES modules only have to be development dependencies, which are bundled.
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { Script } from 'node:vm';

// What claims must be quick; some must know every command, or are commands of experiments. Others needn't pay for their size.
const BUNDLES: Record<string, string> = {
  run: 'claim',
  hold: 'claim',
  exp: 'experiments',
  help: 'experiments',
  completion: 'experiments',
};
const bundle = BUNDLES[process.argv[2] ?? ''] ?? 'command';
/** Of this file or of the launcher: both find the same packages. */
declare const require: NodeJS.Require;
const file = join(import.meta.dirname, `${bundle}.cjs`);

/** Made by the build, for the Node.js that it ran on; V8 refuses it on any other. */
const cache = join(import.meta.dirname, `${bundle}.${process.version}-${process.arch}.cache`);

function load(): void {
  if (!existsSync(cache)) {
    require(file);
    return;
  }
  // The build escapes what isn't ASCII, and reading Latin-1 is faster than reading UTF-8.
  const source = `(function (require, __filename, __dirname) {${readFileSync(file, 'latin1')}\n})`;
  const script = new Script(source, { filename: file, cachedData: readFileSync(cache) });
  script.runInThisContext()(require, file, dirname(file));
  const path = process.env.GPU_OWNER_WRITE_CODE_CACHE;
  if (path)
    process.on('exit', () =>
      process.getBuiltinModule('node:fs').writeFileSync(path, script.createCachedData()),
    );
}

load();
