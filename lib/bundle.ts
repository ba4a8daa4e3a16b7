/**
 * Runs a bundle of this package, from V8's own compiled form where there is one that fits. That saves some 10 ms at each start.
 * Node.js 22 has module.enableCompileCache for this, Node.js 20 doesn't. Compiled forms are made by the build for its own
 * Node.js, and by npm's install script for the user's. V8 refuses one of another Node.js, or with other flags; then, as where
 * there is none, it compiles. V8 itself compares only the length of the source, so a copy of the source ends the file, and
 * any other source has no compiled form.
 *
 * `import()` of what isn't bundled can't work in there: packages that are ES modules only have to be development
 * dependencies, which are bundled.
 *
 * @param require for the bundle
 * @returns what it exports
 */
export function runBundle(name: string, directory: string, require: (id: string) => unknown): unknown {
  // An ES module that imports them by name loads streams along with them.
  const { readFileSync, writeFileSync } = process.getBuiltinModule('node:fs');
  const { Script } = process.getBuiltinModule('node:vm');
  const file = `${directory}/${name}.cjs`;
  const source = readFileSync(file);
  let cachedData: Buffer | undefined;
  try {
    const cache = readFileSync(`${directory}/${name}.${process.version}-${process.arch}.cache`);
    const end = Math.max(0, cache.length - source.length);
    if (cache.subarray(end).equals(source)) cachedData = cache.subarray(0, end);
  } catch {}
  // The build escapes what isn't ASCII, and Latin-1 is faster to decode than UTF-8.
  const text = source.toString('latin1');
  const script = new Script(`(function (${PARAMETERS}) {${text}\n})`, { filename: file, cachedData });
  let run = script.runInThisContext();
  // Test runners have contexts of their own, with an `Error` of their own.
  if (!(run instanceof Function))
    run = new Function(...PARAMETERS.split(', '), `${text}\n//# sourceURL=${file}`);
  const module = { exports: {} };
  run(module, module.exports, require, file, directory);

  const path = process.env.GPU_OWNER_WRITE_CODE_CACHE;
  if (path?.startsWith(`${name}=`)) {
    process.on('exit', () =>
      writeFileSync(path.slice(name.length + 1), Buffer.concat([script.createCachedData(), source])),
    );
  }
  return module.exports;
}

const PARAMETERS = 'module, exports, require, __filename, __dirname';
