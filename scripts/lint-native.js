// Checks the C++ part: its format (clang-format), names and mistakes (clang-tidy, with compile commands that CMake writes).
// A tool that isn't installed is reported as skipped (both are on PyPI: pip install clang-format clang-tidy).
//
// Usage: node scripts/lint-native.js              checks both
//        node scripts/lint-native.js --format     checks the format only
//        node scripts/lint-native.js --fix        writes the format
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';

const root = dirname(import.meta.dirname);
const ROOMS = ['native', 'simulator', 'test/fuzz/native'];
const BUILD = 'build-tidy';

function has(tool) {
  return spawnSync(tool, ['--version'], { stdio: 'ignore' }).status === 0;
}

/** @returns false: it found something */
function run(tool, args) {
  return spawnSync(tool, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] }).status === 0;
}

const files = ROOMS.flatMap((room) =>
  readdirSync(join(root, room), { recursive: true })
    .filter((name) => /\.(cc|h)$/.test(name))
    .map((name) => join(room, name)),
).sort();
const isFix = process.argv.includes('--fix');
const skip = (what, why) => console.log(`${what}: skipped, ${why}`);

let isClean = true;
if (has('clang-format')) {
  isClean = run('clang-format', isFix ? ['-i', ...files] : ['--dry-run', '-Werror', ...files]);
  console.log(
    `clang-format: ${files.length} files, ${isClean ? 'clean' : 'see above (npm run format:native)'}`,
  );
} else {
  skip('clang-format', 'it is not installed (pip install clang-format)');
}
if (!isFix && !process.argv.includes('--format')) {
  const sources = files.filter(
    (file) => file.endsWith('.cc') && !/^test\/|^native\/(tests|bindings)|addon\.cc$/.test(file),
  );
  if (!has('clang-tidy')) skip('clang-tidy', 'it is not installed (pip install clang-tidy)');
  else {
    const isTidy =
      run('cmake', ['-S', '.', '-B', BUILD, '--log-level=ERROR']) &&
      run('clang-tidy', ['--quiet', '-p', BUILD, ...sources]);
    console.log(`clang-tidy: ${sources.length} files, ${isTidy ? 'clean' : 'see above'}`);
    isClean &&= isTidy;
  }
}
process.exitCode = isClean ? 0 : 1;
