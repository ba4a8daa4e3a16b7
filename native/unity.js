// Prints the sources of a target for binding.gyp: for each of these lists of sources.json, one file that includes all of them.
// So the compiler reads each header once for a list, which halves the time of a build. CMakeLists.txt compiles each file alone.
//
// Usage: node native/unity.js LIST...
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const lists = JSON.parse(readFileSync(join(import.meta.dirname, 'sources.json'), 'utf8'));
const directory = 'build/unity';

for (const name of process.argv.slice(2)) {
  if (lists[name].length === 1) {
    console.log(lists[name][0]);
    continue;
  }
  const file = join(import.meta.dirname, '..', directory, `${name}.cc`);
  const text = lists[name].map((path) => `#include "../../${path}"\n`).join('');
  mkdirSync(join(file, '..'), { recursive: true });
  if (!existsSync(file) || readFileSync(file, 'utf8') !== text) writeFileSync(file, text); // else make compiles it again
  console.log(`${directory}/${name}.cc`);
}
