// Writes V8's compiled form of the command to dist/, for the Node.js that runs this: it saves each start some 10 ms. What
// isn't compiled before it is called is compiled now by calling it: a `run` on simulated GPUs, up to where it would become
// the keeper, and an experiment. Without the native part there is nothing to call, and the command works without a cache.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const root = dirname(import.meta.dirname);
const built = join(root, 'build/Release');

/** @param build the native part. @returns what it said */
function write(name, args, directory, build) {
  const cache = join(root, 'dist', `${name}.${process.version}-${process.arch}.cache`);
  writeFileSync(cache, ''); // an empty one is refused, and replaced at the end
  const { status, stderr } = spawnSync(process.execPath, [join(root, 'dist/gpu-owner.cjs'), ...args], {
    cwd: directory,
    env: {
      ...process.env,
      GPU_OWNER_BUILD: build,
      GPU_OWNER_SIMULATE: '4',
      GPU_OWNER_SIMULATE_DIR: join(directory, 'machines'),
      GPU_OWNER_MACHINE_CONFIG: '/dev/null',
      XDG_CONFIG_HOME: directory,
      XDG_STATE_HOME: directory,
      GPU_OWNER_WRITE_CODE_CACHE: cache,
      CUDA_VISIBLE_DEVICES: undefined,
      GPU_OWNER_LOCK_DIR: undefined,
      GPU_OWNER_JOB: undefined,
    },
    stdio: ['ignore', 'ignore', 'pipe'],
    encoding: 'utf8',
    timeout: 30_000,
  });
  const done = args[0] === 'run' ? stderr.includes('keeper') : status === 0;
  if (done) return;
  console.error(`gpu-owner: no code cache of ${name}.cjs: ${stderr}`);
  rmSync(cache, { force: true });
}

if (existsSync(join(built, 'gpu_owner.node')) && process.platform === 'linux') {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-cache-'));
  try {
    const without = join(directory, 'build');
    mkdirSync(without);
    for (const name of ['gpu_owner.node', 'gpu-owner-placeholder', 'simulator']) {
      symlinkSync(join(built, name), join(without, name));
    }
    write('claim', ['run', '-n', '2', '--', 'true'], directory, without);
    write('command', ['status', '--simulate', '2'], directory, built);
    const experiment = ['exp', 'run', '--gpus', '2', '--grid', 'a=1,2', '--', 'true'];
    write('experiments', experiment, directory, built);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}
