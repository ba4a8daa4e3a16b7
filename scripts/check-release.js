// Says what is missing before a release is published.
//
// Usage: node scripts/check-release.js [vX.Y.Z]     the tag of the release; default: the version of package.json
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const root = dirname(import.meta.dirname);
const read = (path) => readFileSync(join(root, path), 'utf8');
const { version, repository } = JSON.parse(read('package.json'));
const tag = process.argv[2] ?? `v${version}`;
const problems = [];

if (tag !== `v${version}`) problems.push(`the tag is ${tag}, package.json says ${version}`);
const python = /^__version__ = "(.+)"$/m.exec(read('python/gpu_owner/__init__.py'))?.[1];
if (python !== version)
  problems.push(`python/gpu_owner/__init__.py says ${python}, package.json says ${version}`);
const section = read('CHANGELOG.md')
  .split('\n')
  .find((line) => line.startsWith(`## ${version}`));
if (section === undefined || section.includes('unreleased')) {
  problems.push(`CHANGELOG.md has no released section for ${version}`);
}
// npm takes a statement of provenance only for the repository that package.json names.
const url = process.env.GITHUB_REPOSITORY && `git+https://github.com/${process.env.GITHUB_REPOSITORY}.git`;
if (url && repository?.url !== url) {
  const wanted = `"repository": { "type": "git", "url": "${url}" }`;
  problems.push(`the repository in package.json is ${repository?.url ?? 'missing'}; npm wants ${wanted}`);
}
const PACKAGES = [
  `gpu-owner-${version}.tgz`,
  ...['x64', 'arm64'].flatMap((arch) =>
    ['xz', 'gz'].map((ending) => `gpu-owner-${version}-linux-${arch}.tar.${ending}`),
  ),
  `gpu_owner_client-${version}-py3-none-any.whl`,
  ...['x86_64', 'aarch64'].map((arch) => `gpu_owner-${version}-py3-none-manylinux_2_28_${arch}.whl`),
  ...['amd64', 'arm64'].map((arch) => `gpu-owner_${version}_${arch}.deb`),
];
const present = existsSync(join(root, 'release')) ? readdirSync(join(root, 'release')) : [];
for (const name of present.filter((each) => each !== 'SHA256SUMS' && !PACKAGES.includes(each))) {
  problems.push(`release/${name} is not of this release; remove it`);
}
for (const name of PACKAGES) {
  if (!existsSync(join(root, 'release', name)))
    problems.push(`release/${name} is missing; run npm run package`);
}

for (const problem of problems) console.error(`check-release: ${problem}`);
process.exitCode = problems.length > 0 ? 1 : 0;
