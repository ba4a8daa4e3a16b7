// Writes V8's compiled form of the command to dist/, for the Node.js that runs this: it saves each start some 10 ms. What
// isn't compiled before it is called is compiled now by calling it: a `run` on simulated GPUs, up to where it would become
// the keeper. Without the native part there is nothing to call, and the command works without a cache.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const root = dirname(import.meta.dirname);
const built = join(root, 'build/Release');
const cache = join(root, 'dist', `command.${process.version}-${process.arch}.cache`);

if (existsSync(join(built, 'gpu_owner.node')) && process.platform === 'linux') {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-cache-'));
  try {
    const without = join(directory, 'build');
    mkdirSync(without);
    for (const name of ['gpu_owner.node', 'gpu-owner-placeholder', 'simulator']) {
      symlinkSync(join(built, name), join(without, name));
    }
    writeFileSync(cache, ''); // an empty one is refused, and replaced at the end
    const { stderr } = spawnSync(
      process.execPath,
      [join(root, 'dist/gpu-owner.cjs'), 'run', '-n', '2', '--', 'true'],
      {
        env: {
          ...process.env,
          GPU_OWNER_BUILD: without,
          GPU_OWNER_SIMULATE: '4',
          GPU_OWNER_SIMULATE_DIR: join(directory, 'machines'),
          GPU_OWNER_MACHINE_CONFIG: '/dev/null',
          XDG_CONFIG_HOME: directory,
          GPU_OWNER_WRITE_CODE_CACHE: cache,
          CUDA_VISIBLE_DEVICES: undefined,
          GPU_OWNER_LOCK_DIR: undefined,
        },
        encoding: 'utf8',
      },
    );
    if (!stderr.includes('keeper')) {
      console.error(`gpu-owner: no code cache: ${stderr}`);
      rmSync(cache, { force: true });
    }
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}
