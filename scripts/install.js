// The install script of a clone: compiles what changed of the native part. Published packages have none, as their binaries are
// compiled already (scripts/package.js).
import { spawnSync } from 'node:child_process';
import { cpus } from 'node:os';
import { dirname } from 'node:path';
import { headersEnvironment } from './node-headers.js';

if (process.platform !== 'linux') {
  console.log(
    'gpu-owner: runs on Linux only; here its types work, and every call throws ERR_UNSUPPORTED_PLATFORM.',
  );
  process.exit();
}

const { status } = spawnSync('node-gyp configure build', {
  cwd: dirname(import.meta.dirname),
  shell: true,
  stdio: 'inherit',
  env: { JOBS: String(cpus().length), ...headersEnvironment(), ...process.env },
});
if (status !== 0) {
  console.error(
    'gpu-owner: the native part could not be built; it needs Python 3, make and a C++17 compiler (g++).',
  );
}
process.exitCode = status ?? 1;
