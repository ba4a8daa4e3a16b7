// The package as users get it: what is in it, and that an installed copy works with prebuilt binaries, types included.
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { binaries } from '../support/binaries.ts';

const packageRoot = resolve(import.meta.dirname, '../..');
let scratch: string;

beforeAll(() => {
  scratch = mkdtempSync(join(tmpdir(), 'gpu-owner-package-'));
});
afterAll(() => rmSync(scratch, { recursive: true }));

function npm(directory: string, ...args: string[]): string {
  // What the `npm` that runs the tests has set is meant for this package, not for the one in the scratch directory.
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^npm_|^INIT_CWD$/.test(name)),
  );
  return execFileSync('npm', [...args, '--loglevel=error'], { cwd: directory, encoding: 'utf8', env });
}

const isCache = (name: string) => name.endsWith('.cache');

/** A copy of the package as a release has it: built, with prebuilt binaries for this machine. */
function release(): string {
  const directory = join(scratch, 'release');
  mkdirSync(directory);
  for (const name of [
    'package.json',
    'binding.gyp',
    'bin',
    'dist',
    'native',
    'scripts',
    'docs',
    'python',
    'README.md',
    'LICENSE',
  ]) {
    if (existsSync(join(packageRoot, name)))
      cpSync(join(packageRoot, name), join(directory, name), { recursive: true });
  }
  const prebuilt = join(directory, `prebuilds/linux-${process.arch}`);
  mkdirSync(join(prebuilt, 'simulator'), { recursive: true });
  cpSync(join(binaries(), 'gpu_owner.node'), join(prebuilt, 'gpu-owner.glibc.node'));
  for (const name of [
    'gpu-owner-inherited',
    'gpu-owner-keeper',
    'gpu-owner-placeholder',
    'gpu-owner-simulator',
  ]) {
    cpSync(join(binaries(), name), join(prebuilt, name));
  }
  for (const name of ['libnvidia-ml.so.1', 'libcuda.so.1']) {
    cpSync(join(binaries(), 'simulator', name), join(prebuilt, 'simulator', name));
  }
  return directory;
}

describe.skipIf(process.env.GPU_OWNER_BUILD !== undefined)('the package', () => {
  let tarball: string;
  let files: string[];

  beforeAll(() => {
    const packed = JSON.parse(
      npm(release(), 'pack', '--ignore-scripts', '--json', '--pack-destination', scratch),
    );
    const [{ filename, files: list }] = Array.isArray(packed) ? packed : Object.values(packed);
    tarball = join(scratch, filename);
    files = list.map(({ path }: { path: string }) => path);
  });

  it('has what is needed to run and to compile, and no more', () => {
    const wanted = [
      'bin/gpu-owner.cjs',
      'dist/index.js',
      'dist/library.cjs',
      'dist/index.d.ts',
      'dist/gpu-owner.cjs',
      'binding.gyp',
    ];
    const compiled = [
      'native/sources.json',
      'native/addon.cc',
      'native/exports/addon.map',
      'native/compat/glibc.h',
    ];
    const prebuilt = `prebuilds/linux-${process.arch}`;
    expect(files).toEqual(expect.arrayContaining([...wanted, ...compiled, 'scripts/install.js', 'LICENSE']));
    expect(files).toContain(`${prebuilt}/simulator/libcuda.so.1`);
    expect(files.filter((path) => path.startsWith('python/')).sort()).toEqual([
      'python/README.md',
      'python/build_wheel.py',
      'python/gpu_owner.py',
      'python/pyproject.toml',
    ]);
    const unwanted = files.filter((path) =>
      /^(lib|test|bench|build|node_modules|native\/tests)\//.test(path),
    );
    expect(unwanted).toEqual([]);
    // Compiled code that no reviewer could read.
    expect(readdirSync(join(scratch, 'release/dist')).filter(isCache)).toHaveLength(4);
    expect(files.filter(isCache)).toEqual([]);
  });

  describe('installed elsewhere', () => {
    let project: string;

    beforeAll(() => {
      project = join(scratch, 'project');
      mkdirSync(project);
      writeFileSync(
        join(project, 'package.json'),
        JSON.stringify({ name: 'project', type: 'module', private: true }),
      );
      npm(project, 'install', tarball, '--omit=dev', '--prefer-offline', '--no-audit', '--no-fund');
    }, 120_000);

    const env = () => ({
      ...process.env,
      GPU_OWNER_SIMULATE: '2',
      GPU_OWNER_SIMULATE_DIR: join(scratch, 'machines'),
    });

    it('compiles nothing where a prebuilt binary fits', () => {
      expect(readdirSync(join(project, 'node_modules/gpu-owner'))).not.toContain('build');
    });

    it('has everything compiled by V8 for the Node.js that installed it', () => {
      const caches = readdirSync(join(project, 'node_modules/gpu-owner/dist')).filter(isCache);
      const version = `${process.version}-${process.arch}`;
      expect(caches).toEqual(
        ['claim', 'command', 'experiments', 'library'].map((name) => `${name}.${version}.cache`),
      );
    });

    it('has a working command, keeper and simulator', () => {
      const command = join(project, 'node_modules/.bin/gpu-owner');
      const print = ['run', '--', 'sh', '-c', 'echo "$CUDA_VISIBLE_DEVICES"'];
      const output = execFileSync(command, print, { encoding: 'utf8', env: env() });
      expect(output).toMatch(/^GPU-[0-9a-f-]{36}\n$/);
    });

    it('has a working library', () => {
      const program = `
        import { GPUOwner } from 'gpu-owner';
        const owner = new GPUOwner(2);
        console.log(owner.devices.length, process.env.CUDA_VISIBLE_DEVICES.split(',').length);
        owner.release();`;
      const args = ['--input-type=module', '--eval', program];
      expect(execFileSync(process.execPath, args, { cwd: project, encoding: 'utf8', env: env() })).toBe(
        '2 2\n',
      );
    });

    it.each(['nodenext', 'bundler'])('has types that a strict program can use (%s)', (resolution) => {
      writeFileSync(
        join(project, 'program.ts'),
        `import { GPUOwner, GPUOwnerError, getGPUs, type GPU } from 'gpu-owner';
         const owner: GPUOwner = new GPUOwner({ count: 2, minFreeMemory: '20GiB' });
         const visible: string = owner.visibleDevices;
         const first: GPU | undefined = (await getGPUs())[0];
         const watts: number | null | undefined = first?.powerWatts;
         // @ts-expect-error counts are numbers
         new GPUOwner({ count: 'two' });
         export { GPUOwnerError, visible, watts };`,
      );
      const options = {
        compilerOptions: {
          strict: true,
          noEmit: true,
          target: 'es2022',
          module: resolution === 'nodenext' ? 'nodenext' : 'esnext',
          moduleResolution: resolution,
          typeRoots: [join(packageRoot, 'node_modules/@types')],
          types: ['node'],
        },
        files: ['program.ts'],
      };
      writeFileSync(join(project, 'tsconfig.json'), JSON.stringify(options));
      const tsc = join(packageRoot, 'node_modules/.bin/tsc');
      expect(execFileSync(tsc, ['-p', project], { encoding: 'utf8' })).toBe('');
    });
  });
});

it('installs on other systems without compiling', () => {
  const elsewhere = "Object.defineProperty(process, 'platform', { value: 'darwin' });";
  const args = ['--import', `data:text/javascript,${encodeURIComponent(elsewhere)}`, 'scripts/install.js'];
  const output = execFileSync(process.execPath, args, { cwd: packageRoot, encoding: 'utf8' });
  expect(output).toContain('ERR_UNSUPPORTED_PLATFORM');
});
