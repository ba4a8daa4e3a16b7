// Writes V8's compiled form of the library and of the command to dist/, for the Node.js that runs this: it saves each start
// some 10 ms. Functions that V8 compiles at their first call are called for this, on simulated GPUs: a claim of a program, a
// `run`, a `status` and a sweep. Without the native part there is nothing to call, and everything works without a cache.
import { spawn } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const root = dirname(import.meta.dirname);
const command = join(root, 'dist/gpu-owner.cjs');

const CLAIM = `
import { GPUOwner } from ${JSON.stringify(pathToFileURL(join(root, 'dist/index.js')).href)};
new GPUOwner(1).release();
(await GPUOwner.acquire(1)).release();`;

/** A program for each bundle that does what its users wait for. That of `experiments` reads a file, so `yaml` is written there, too. */
const RUNS = {
  library: ['--input-type=module', '-e', CLAIM],
  claim: [command, 'run', '-n', '2', '--', 'true'],
  command: [command, 'status', '--simulate', '2'],
  experiments: [command, 'exp', 'run', '--gpus', '1', '--grid', 'a=1,2', '--', 'true'],
};

/**
 * @param addon the native part's addon; what was built along with it lies beside it
 * @param names of the bundles
 * @returns what went wrong, a line for each bundle; the others have their caches
 */
export async function writeCodeCaches(addon, names = Object.keys(RUNS)) {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-cache-'));
  try {
    const build = links(resolve(addon), join(directory, 'build'));
    const problems = await Promise.all(names.map((name) => write(name, RUNS[name], directory, build)));
    return problems.filter((problem) => problem !== null);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** A directory with the native part as a build has it, whatever a release calls its files. */
function links(addon, directory) {
  mkdirSync(directory);
  symlinkSync(addon, join(directory, 'gpu_owner.node'));
  for (const name of readdirSync(dirname(addon))) {
    if (!/^(simulator|gpu-owner-\w+)$/.test(name)) continue;
    symlinkSync(join(dirname(addon), name), join(directory, name));
  }
  return directory;
}

async function write(name, args, directory, build) {
  const own = join(directory, name);
  const caches = join(own, 'caches');
  mkdirSync(caches, { recursive: true });
  if (name === 'experiments') {
    mkdirSync(join(own, 'gpu-owner'));
    writeFileSync(join(own, 'gpu-owner/config.yaml'), 'minFreeMemory: 1GiB\n');
  }
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([key]) => !/^(GPU_OWNER_|CUDA_|NODE_)/.test(key)),
  );
  const child = spawn(process.execPath, args, {
    cwd: own,
    env: {
      ...env,
      GPU_OWNER_BUILD: build,
      GPU_OWNER_SIMULATE: '4',
      GPU_OWNER_SIMULATE_DIR: join(own, 'machines'),
      GPU_OWNER_MACHINE_CONFIG: '/dev/null',
      XDG_CONFIG_HOME: own,
      XDG_STATE_HOME: own,
      GPU_OWNER_WRITE_CODE_CACHE: caches,
    },
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: 30_000,
  });
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text) => {
    said += text;
  });
  const status = await new Promise((resolve) => {
    child.on('error', resolve).on('close', resolve);
  });
  if (status !== 0 || !existsSync(join(caches, name)))
    return `no code cache of ${name}: ${said.slice(-500) || status}`;
  for (const file of ['yaml', name].filter((each) => existsSync(join(caches, each))))
    place(join(caches, file));
  return null;
}

/** Renames it when it is complete, and never writes over one: package managers link files into several projects. */
function place(file) {
  const cache = join(root, 'dist', `${basename(file)}.${process.version}-${process.arch}.cache`);
  const unfinished = `${cache}.${process.pid}`;
  copyFileSync(file, unfinished);
  renameSync(unfinished, cache);
}
