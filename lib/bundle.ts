/**
 * Runs a bundle of this package, from V8's own compiled form where there is one that fits. That saves some 10 ms at each start.
 * Node.js 22 has module.enableCompileCache for this, Node.js 20 doesn't. Compiled forms are made by the build for its own
 * Node.js; for another one, the first process that ends in an orderly way leaves its own beside the bundle, if it may write
 * there. V8 refuses one of another Node.js, or with other flags; then, as where there is none, it compiles. V8 itself
 * compares only the length of the source, so the hash of the source, which ends the bundle, ends the compiled form as well.
 *
 * `import()` of what isn't bundled can't work in there: packages that are ES modules only have to be development
 * dependencies, which are bundled.
 *
 * @param require for the bundle
 * @returns what it exports
 */
export function runBundle(name: string, directory: string, require: (id: string) => unknown): unknown {
  // An ES module that imports them by name loads streams along with them.
  const { readFileSync } = process.getBuiltinModule('node:fs');
  const { Script } = process.getBuiltinModule('node:vm');
  const file = `${directory}/${name}.cjs`;
  const path = `${directory}/${name}.${process.version}-${process.arch}.cache`;
  const source = readFileSync(file);
  const hash = source.subarray(-HASH_LENGTH);
  let cachedData: Buffer | undefined;
  try {
    const cache = readFileSync(path);
    if (cache.subarray(-HASH_LENGTH).equals(hash)) cachedData = cache.subarray(0, -HASH_LENGTH);
  } catch {} // none was written yet, or it can't be read: the source is compiled
  // The build escapes what isn't ASCII, and Latin-1 is faster to decode than UTF-8.
  const text = source.toString('latin1');
  const script = new Script(`(function (${PARAMETERS}) {${text}\n})`, { filename: file, cachedData });
  let run = script.runInThisContext();
  // Test runners have contexts of their own, with an `Error` of their own.
  if (!(run instanceof Function))
    run = new Function(...PARAMETERS.split(', '), `${text}\n//# sourceURL=${file}`);
  const module = { exports: {} };
  run(module, module.exports, require, file, directory);

  const asked = process.env.GPU_OWNER_WRITE_CODE_CACHE;
  // V8 would refuse one of other flags later.
  if (asked || (cachedData === undefined && !process.env.NODE_OPTIONS)) {
    const target = asked ? `${asked}/${name}` : path;
    const write = () => writeCodeCache(target, () => Buffer.concat([script.createCachedData(), hash]));
    process.once('exit', write);
    process.once(BEFORE_EXEC, write);
  }
  return module.exports;
}

/** An event of the process: it is about to become another program. */
export const BEFORE_EXEC = 'gpu-owner:exec';

/** Renames the file when it is complete, and never writes over one: package managers link files into several projects. */
function writeCodeCache(path: string, data: () => Buffer): void {
  const { openSync, renameSync, rmSync, writeFileSync } = process.getBuiltinModule('node:fs');
  const unfinished = `${path}.${process.pid}`;
  let descriptor: number;
  try {
    descriptor = openSync(unfinished, 'wx', 0o644);
  } catch {
    return; // somebody else's installation, or a read-only file system: the next start compiles again
  }
  try {
    writeFileSync(descriptor, data());
    renameSync(unfinished, path);
  } catch {
    rmSync(unfinished, { force: true });
  }
}

/** The SHA-256 sum of the source, in hexadecimal: scripts/build.js appends it. */
const HASH_LENGTH = 64;
const PARAMETERS = 'module, exports, require, __filename, __dirname';
