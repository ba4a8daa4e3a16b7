// How the library is loaded: from V8's compiled form where one fits, and without where none does. Tried with a copy of what a
// release has of it, whose caches can be damaged.
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { root } from '../support/machine.ts';

/** The sum of the source: scripts/build.js appends it. */
const _HASH_LENGTH = 64;
const CACHE = `library.${process.version}-${process.arch}.cache`;
const NAMES = [
  'GPUOwner',
  'GPUOwnerError',
  'findFreeGPUs',
  'findFreeGPUsSync',
  'getGPUs',
  'getGPUsSync',
  'getQueue',
];
/** Built-in modules that take longer to load than the library. */
const HEAVY = ['stream', 'worker_threads', 'crypto', 'child_process', 'module', 'os', 'url', 'perf_hooks'];

let project: string;
let copy: string;
beforeEach(() => {
  project = mkdtempSync(join(tmpdir(), 'gpu-owner-library-'));
  copy = join(project, 'node_modules/gpu-owner');
  mkdirSync(copy, { recursive: true });
  const filter = (path: string) => !/\/dist\/(web$|claim|command|experiments|agents)/.test(path);
  for (const name of ['dist', 'package.json'])
    cpSync(join(root, name), join(copy, name), { recursive: true, filter });
  mkdirSync(join(copy, 'build'));
  symlinkSync(binaries(), join(copy, 'build/Release'));
  // Packages that the install script and an experiment need.
  for (const name of ['node-gyp-build', '@photostructure']) {
    symlinkSync(join(root, 'node_modules', name), join(project, 'node_modules', name));
  }
});
afterEach(() => rmSync(project, { recursive: true }));

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);

function run(source: string, flags: string[] = [], env: NodeJS.ProcessEnv = {}) {
  const args = ['--input-type=module', ...flags, '-e', source];
  const { stdout, stderr, status } = spawnSync(process.execPath, args, {
    cwd: project,
    encoding: 'utf8',
    env: {
      ...process.env,
      NODE_OPTIONS: undefined,
      GPU_OWNER_BUILD: undefined,
      GPU_OWNER_SIMULATE: '2',
      GPU_OWNER_SIMULATE_DIR: join(project, 'machines'),
      GPU_OWNER_MACHINE_CONFIG: '/dev/null',
      XDG_CONFIG_HOME: project,
      CUDA_VISIBLE_DEVICES: undefined,
      ...env,
    },
  });
  expect({ stderr, status }).toEqual({ stderr: '', status: 0 });
  return stdout.trim().split('\n');
}

const CLAIM = `const { GPUOwner } = await import('gpu-owner'); console.log(new GPUOwner(2).devices.length);`;

function claim(flags: string[] = []): string[] {
  return run(CLAIM, ['-r', fixture('watch.cjs'), ...flags]);
}

it('the library without a native part says for which systems there is one, and what to do on others', () => {
  rmSync(join(copy, 'build'), { recursive: true });
  const source = `await import('gpu-owner').then(({ GPUOwner }) => new GPUOwner(1)).catch((error) => console.log(error.code, error.message));`;
  expect(run(source).join('')).toMatch(
    /^ERR_UNSUPPORTED_PLATFORM .*glibc 2\.28 or newer, on x64 and arm64.*`npm ci` in a clone/,
  );
});

describe('the compiled form', () => {
  const path = () => join(copy, 'dist', CACHE);

  it('is used', () => {
    expect(claim()).toEqual(['library.cjs used', '2']);
  });

  it('is not needed where there is none', () => {
    rmSync(path());
    expect(claim()).toEqual(['library.cjs none', '2']);
  });

  it.each([
    ['cut off', (bytes: Buffer) => bytes.subarray(0, bytes.length / 2), 'none'],
    ['of another V8', (bytes: Buffer) => bytes.fill(bytes.readUInt8(4) ^ 1, 4, 5), 'refused'],
  ])('is refused if it is %s', (_, change, outcome) => {
    writeFileSync(path(), change(readFileSync(path())));
    expect(claim()).toEqual([`library.cjs ${outcome}`, '2']);
  });

  const library = () => join(copy, 'dist/library.cjs');

  it('is not that of another build of the same length', () => {
    const source = readFileSync(library(), 'utf8');
    const changed = source
      .replaceAll('a number of GPUs', 'A NUMBER OF GPUS')
      .replace(/.$/, (digit) => (digit === '0' ? '1' : '0'));
    expect([changed.length, changed === source]).toEqual([source.length, false]);
    writeFileSync(library(), changed);
    expect(claim()).toEqual(['library.cjs none', '2']);
    expect(
      run(
        `import('gpu-owner').then(({ GPUOwner }) => new GPUOwner(-1)).catch((e) => console.log(e.message))`,
      ),
    ).toEqual([expect.stringContaining('is not A NUMBER OF GPUS')]);
  });

  it('is left by the first process that ends where there is none, also over a link', () => {
    const elsewhere = join(project, 'elsewhere');
    writeFileSync(elsewhere, 'of somebody else');
    rmSync(path());
    symlinkSync(elsewhere, path());
    expect(claim()).toEqual(['library.cjs none', '2']);
    expect(claim()).toEqual(['library.cjs used', '2']);
    expect(readFileSync(elsewhere, 'utf8')).toBe('of somebody else');
    const names = readdirSync(join(copy, 'dist')).filter((name) => /library.*cache/.test(name));
    expect(names).toEqual([CACHE]);
  });
});

describe('the library', () => {
  it('exports what its declarations say, by name', () => {
    const declared = readFileSync(join(root, 'dist/index.d.ts'), 'utf8');
    for (const name of NAMES) expect(declared).toContain(name);
    const names = run(
      `import * as all from 'gpu-owner';
       import { createRequire } from 'node:module';
       const required = createRequire(process.cwd() + '/x.js')('gpu-owner');
       console.log(Object.keys(all).join());
       console.log(all === required, all.GPUOwner.name, all.GPUOwnerError.name);`,
    );
    expect(names).toEqual([NAMES.join(), 'true GPUOwner GPUOwnerError']);
  });

  it('throws errors whose stack says where, in readable lines', () => {
    const [line = '', ...stack] = run(
      `import { GPUOwner, GPUOwnerError } from 'gpu-owner';
       try { new GPUOwner(3); } catch (error) {
         console.log(error instanceof GPUOwnerError && error instanceof Error, error.code);
         console.log(error.stack);
       }`,
    );
    expect(line).toBe('true ERR_INVALID_ARGUMENT');
    const places = stack.filter((each) => each.includes('library.cjs'));
    expect(places.at(-1)).toMatch(/ at new GPUOwner \(.*\/dist\/library\.cjs:\d+:\d+\)$/);
    const text = readFileSync(join(copy, 'dist/library.cjs'), 'utf8').split('\n');
    const [, number, column] = /:(\d+):(\d+)\)$/.exec(places[0] as string) as string[];
    expect(text[Number(number) - 1]?.slice(Number(column) - 1)).toMatch(/^new GPUOwnerError\(/);
  });

  it("works in a context of its own, as test runners have them, with that context's classes", () => {
    const lines = run(`await import(${JSON.stringify(fixture('own-context.mjs'))})`, [
      '--experimental-vm-modules',
      '--no-warnings',
    ]);
    expect(lines).toEqual(['1', 'true']);
  });

  it('loads nothing heavy on the way to a claim', () => {
    const loaded = run(
      `const before = new Set(process.moduleLoadList);
       const { GPUOwner } = await import('gpu-owner');
       new GPUOwner(1);
       const loaded = process.moduleLoadList.filter((name) => !before.has(name));
       console.log(loaded.map((name) => name.replace(/^.*Module /, '')).join('\\n'));`,
    );
    expect(loaded).toContain('vm'); // the list works
    expect(loaded.filter((name) => HEAVY.includes(name))).toEqual([]);
  });

  it('refuses to claim in a worker thread', () => {
    const lines = run(
      `import { Worker } from 'node:worker_threads';
       const source = "import('gpu-owner').then(({ GPUOwner }) => new GPUOwner(1)).catch((error) => console.log(error.code));";
       new Worker(source, { eval: true });`,
    );
    expect(lines).toEqual(['ERR_WORKER_THREAD']);
  });

  it('says that it needs a newer Node.js, and no Deno', () => {
    const runtimes = ['node 18.20.4', 'node 21.7.3', 'node 22.2.0', 'deno 2.1.0'];
    const lines = run(
      `const { resolve } = import.meta;
       for (const [runtime, value] of ${JSON.stringify(runtimes)}.map((each) => each.split(' '))) {
         Object.defineProperty(process.versions, runtime, { value, configurable: true });
         await import(resolve('gpu-owner') + '?' + value).catch(({ code, message }) => console.log(code, message));
       }`,
    );
    const needed = String.raw`Node\.js 20\.19, or 22\.3 or newer\.$`;
    expect(lines).toEqual(
      runtimes.map((runtime) => {
        const name = runtime.replace('node', 'Node.js').replace('deno', 'Deno');
        const why = runtime.startsWith('deno') ? "can't run gpu-owner, which" : 'is too old: gpu-owner';
        return expect.stringMatching(`^ERR_UNSUPPORTED_PLATFORM ${name} .*${why} needs ${needed}`);
      }),
    );
  });

  it('names the option with which Node.js may load it', () => {
    const flags = ['--permission', '--experimental-permission'];
    const permission = flags.find((flag) => process.allowedNodeEnvironmentFlags.has(flag)) as string;
    const [text] = run(
      "import('gpu-owner').then(({ GPUOwner }) => new GPUOwner(1)).catch(({ message }) => console.log(message));",
      [permission, '--allow-fs-read=*', '--no-warnings'],
    );
    expect(text).toBe(
      'gpu-owner needs its native addon, which Node.js may not load here: start Node.js with --allow-addons.',
    );
  });

  // As in Bun, where assigning to `process.env` only changes what JavaScript sees.
  it('shows CUDA its GPUs also where process.env is not the environment', () => {
    const lines = run(
      `process.env = { ...process.env };
       const { GPUOwner } = await import('gpu-owner');
       const addon = { exports: {} };
       process.dlopen(addon, ${JSON.stringify(join(binaries(), 'gpu_owner.node'))});
       const show = () => console.log(String(addon.exports.processVariable('CUDA_VISIBLE_DEVICES')));
       show();
       const owner = new GPUOwner(1);
       show();
       owner.release();
       show();`,
    );
    expect(lines).toEqual(['null', expect.stringMatching(/^GPU-/), 'null']);
  });
});
