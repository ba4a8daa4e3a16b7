// npm's install script: builds the native part where no prebuilt binary fits, and has V8 compile the rest for this Node.js.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { dirname, join } from 'node:path';
import { writeCodeCaches } from './code-cache.js';
import { headersEnvironment } from './node-headers.js';

const root = dirname(import.meta.dirname);

if (process.platform !== 'linux') {
  console.log(
    'gpu-owner: runs on Linux only; here its types work, and every call throws ERR_UNSUPPORTED_PLATFORM.',
  );
  process.exit();
}

// In a clone the sources change: compile what did. Elsewhere node-gyp-build takes a prebuilt binary, or compiles.
const clone = existsSync(join(root, 'native/tests'));
const command = clone ? 'node-gyp configure build' : 'node-gyp-build';
const { status } = spawnSync(command, {
  cwd: root,
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

// Of a clone, the build does it. A start without takes longer, and that is all: nothing to speak of.
if (status === 0 && !clone) {
  try {
    const { path } = createRequire(import.meta.url)('node-gyp-build');
    await writeCodeCaches(path(root));
  } catch {}
}
