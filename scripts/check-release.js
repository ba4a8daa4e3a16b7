// Says what is missing before a release is published.
//
// Usage: node scripts/check-release.js [vX.Y.Z]     the tag of the release; default: the version of package.json
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const root = dirname(import.meta.dirname);
const read = (path) => readFileSync(join(root, path), 'utf8');
const { version } = JSON.parse(read('package.json'));
const tag = process.argv[2] ?? `v${version}`;
const problems = [];

if (tag !== `v${version}`) problems.push(`the tag is ${tag}, package.json says ${version}`);
const python = /^__version__ = "(.+)"$/m.exec(read('python/gpu_owner.py'))?.[1];
if (python !== version) problems.push(`python/gpu_owner.py says ${python}, package.json says ${version}`);
const section = read('CHANGELOG.md')
  .split('\n')
  .find((line) => line.startsWith(`## ${version}`));
if (section === undefined || section.includes('unreleased')) {
  problems.push(`CHANGELOG.md has no released section for ${version}`);
}
for (const target of ['linux-x64', 'linux-arm64']) {
  if (!existsSync(join(root, 'prebuilds', target))) {
    problems.push(`prebuilds/${target} is missing; run npm run prebuild`);
  }
}

for (const problem of problems) console.error(`check-release: ${problem}`);
process.exitCode = problems.length > 0 ? 1 : 0;
