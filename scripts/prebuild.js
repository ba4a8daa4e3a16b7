// Makes prebuilt binaries in prebuilds/linux-x64 and prebuilds/linux-arm64: the addon by prebuildify, and beside it the
// executables and the simulated driver, where lib/native.ts looks for them. They need glibc 2.28 or newer; on musl
// (Alpine) the package compiles itself at installation.
//
// Usage: node scripts/prebuild.js [x64] [arm64]     default: both, arm64 only where a cross-compiler is installed
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { cpus, arch as machine } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { headersEnvironment } from './node-headers.js';

const root = dirname(import.meta.dirname);
export const TRIPLES = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' };
/** Files that are built along with the addon, and lie beside it. */
export const COMPANIONS = [
  'gpu-owner-keeper',
  'gpu-owner-placeholder',
  'gpu-owner-simulator',
  'simulator/libnvidia-ml.so.1',
  'simulator/libcuda.so.1',
  'simulator/bin/nvidia-smi',
];
const SOURCES = ['binding.gyp', 'native', 'simulator'];
/** Lies beside binaries, and has the sum of what they were made from. */
const STAMP = 'sources.sha256';

/** Were the binaries of a directory made from these sources, and completed? */
export function isUpToDate(directory) {
  const stamp = join(directory, STAMP);
  return existsSync(stamp) && readFileSync(stamp, 'utf8') === sumOfSources();
}

export function markUpToDate(directory, sum = sumOfSources()) {
  writeFileSync(join(directory, STAMP), sum);
}

/** The sum of what is compiled, and of how. */
function sumOfSources() {
  const files = SOURCES.flatMap((path) =>
    statSync(join(root, path)).isFile()
      ? [path]
      : readdirSync(join(root, path), { recursive: true }).map((name) => join(path, name)),
  );
  const sum = createHash('sha256');
  for (const path of [...files, 'scripts/prebuild.js'].sort()) {
    if (/^native\/tests\/|\.ts$/.test(path) || !statSync(join(root, path)).isFile()) continue;
    const content = readFileSync(join(root, path));
    sum.update(`${path}\n${content.length}\n`).update(content);
  }
  return sum.digest('hex');
}

function run(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', ...options });
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} exited with ${status}`);
}

function exists(command) {
  return spawnSync(command, ['--version'], { stdio: 'ignore' }).error === undefined;
}

function prebuild(arch) {
  const prefix = arch === machine() ? '' : `${TRIPLES[arch]}-`;
  const sum = sumOfSources(); // before they are read: they may change meanwhile
  // In a copy, because prebuildify wipes build/ and takes the addon out of it.
  const copy = join(root, 'build-prebuild', arch);
  rmSync(copy, { recursive: true, force: true });
  mkdirSync(copy, { recursive: true });
  for (const path of ['package.json', ...SOURCES]) {
    cpSync(join(root, path), join(copy, path), { recursive: true });
  }
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));

  const bin = join(root, 'node_modules/.bin');
  const output = join(root, 'prebuilds', `linux-${arch}`);
  rmSync(output, { recursive: true, force: true });
  run(
    join(bin, 'prebuildify'),
    [
      '--napi',
      '--strip',
      '--tag-libc',
      '--arch',
      arch,
      '--strip-bin',
      `${prefix}strip`,
      '--cwd',
      copy,
      '--out',
      root,
    ],
    {
      env: {
        ...process.env,
        ...headersEnvironment(),
        PATH: `${bin}${delimiter}${process.env.PATH}`,
        JOBS: String(cpus().length),
        CC: `${prefix}gcc`,
        CXX: `${prefix}g++`,
        AR: `${prefix}ar`,
        // Before glibc 2.34 threads and the loader's functions were in libraries of their own.
        LDFLAGS: '-Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed',
      },
    },
  );

  // prebuildify copies every shared library that it sees to the top; the simulated driver belongs in simulator/ only.
  for (const path of COMPANIONS.filter((path) => path.startsWith('simulator/'))) {
    rmSync(join(output, path.slice('simulator/'.length)), { force: true });
  }
  for (const path of COMPANIONS) {
    cpSync(join(copy, 'build/Release', path), join(output, path));
    run(`${prefix}strip`, ['--strip-all', join(output, path)]);
  }
  run(process.execPath, [join(root, 'scripts/check-binaries.js'), '--prebuilt', output]);
  markUpToDate(output, sum);
  rmSync(copy, { recursive: true, force: true });
}

if (process.argv[1] === import.meta.filename) main(process.argv.slice(2));

function main(asked) {
  const skipped = [];
  for (const arch of asked.length > 0 ? asked : Object.keys(TRIPLES)) {
    if (TRIPLES[arch] === undefined)
      throw new Error(`${arch}: not one of ${Object.keys(TRIPLES).join(', ')}`);
    const compiler = `${TRIPLES[arch]}-g++`;
    if (arch === machine() || exists(compiler)) prebuild(arch);
    else if (asked.length > 0) throw new Error(`${arch}: ${compiler} is not installed`);
    else
      skipped.push(
        `${arch} left out: ${compiler} is not installed (Debian, Ubuntu: apt-get install g++-${compiler.slice(0, -4).replace('_', '-')})`,
      );
  }
  for (const line of skipped) console.log(line);
}
