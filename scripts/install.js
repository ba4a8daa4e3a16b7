// The install script of a clone: compiles what changed of the native part. Published packages have none, as their binaries are
// compiled already (scripts/package.js).
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawnSync } from 'node:child_process';
import { utimesSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { headersEnvironment } from './node-headers.js';

if (process.platform !== 'linux') {
  console.log(
    'gpu-owner: runs on Linux only; here its types work, and every call throws ERR_UNSUPPORTED_PLATFORM.',
  );
  process.exit();
}

const root = dirname(import.meta.dirname);
const started = new Date();
const { status } = spawnSync('node-gyp configure build', {
  cwd: root,
  shell: true,
  stdio: 'inherit',
  env: { JOBS: String(cpus().length), ...headersEnvironment(), ...process.env },
});
if (status === 0) {
  // For test/setup/built.ts: the binaries have all that was changed before, also what `make` needn't compile or link again for.
  const stamp = join(root, 'build/installed');
  writeFileSync(stamp, '');
  utimesSync(stamp, started, started);
} else {
  console.error(
    'gpu-owner: the native part could not be built; it needs Python 3, make and a C++17 compiler (g++).',
  );
}
// Without `??`: Node.js 12, which Ubuntu 22.04 has, should get as far as the first line.
process.exitCode = status === null ? 1 : status;
