// The packages as users get them: what is in them, and that each works where it is installed, for any user who installs it.
import { execFileSync, spawnSync } from 'node:child_process';
import {
  appendFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { root } from '../support/machine.ts';
import { cloneSources, pack, registryEnv } from '../support/packages.ts';

const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
const dpkgArch = process.arch === 'x64' ? 'amd64' : process.arch;
const hasDpkg = spawnSync('dpkg-deb', ['--version']).status === 0;
const hasPip = spawnSync('python3', ['-m', 'pip', 'help'], { encoding: 'utf8' }).stdout?.includes(
  '--python <',
);
const MIB = 2 ** 20;
/** Packages have these, but for the wheel. */
const documents = ['README.md', 'CHANGELOG.md', 'LICENSE', 'docs/installation.md', 'examples/config.yaml'];

let scratch: string;
let releases: string;
beforeAll(() => {
  scratch = mkdtempSync(join(tmpdir(), 'gpu-owner-package-'));
  releases = join(scratch, 'releases');
  pack(releases, ['npm', 'tarball', 'wheel', ...(hasDpkg ? ['deb'] : [])]);
}, 300_000);
afterAll(() => rmSync(scratch, { recursive: true }));

/** As a user's shell has it: no Node.js but in `path`, nothing of what runs these tests. */
function environment(path = '/usr/bin:/bin'): NodeJS.ProcessEnv {
  const home = join(scratch, 'home');
  mkdirSync(home, { recursive: true });
  return {
    PATH: path,
    HOME: home,
    GPU_OWNER_SIMULATE: '2',
    GPU_OWNER_SIMULATE_DIR: join(scratch, 'machines'),
    GPU_OWNER_MACHINE_CONFIG: '/dev/null',
  };
}

/** No Node.js can be found in there, but what shell scripts need. */
function withoutNode(): string {
  const directory = join(scratch, 'few-programs');
  if (!existsSync(directory)) {
    mkdirSync(directory);
    for (const name of ['sh', 'env', 'readlink', 'python3', 'true', 'cat']) {
      symlinkSync(join('/usr/bin', name), join(directory, name));
    }
  }
  return directory;
}

function npm(directory: string, ...args: string[]): string {
  // The variables of the `npm` that runs the tests are meant for this package, not for the one in the scratch directory.
  const env = Object.fromEntries(
    Object.entries(registryEnv).filter(([name]) => !/^npm_|^INIT_CWD$/.test(name)),
  );
  const install = () =>
    execFileSync('npm', [...args, '--loglevel=error'], {
      cwd: directory,
      encoding: 'utf8',
      env,
      timeout: 50_000,
    });
  try {
    return install();
  } catch (error) {
    // npm stood still once, in the middle of unpacking, for more than an hour. 600 more tries have not shown why.
    if ((error as NodeJS.ErrnoException).code !== 'ETIMEDOUT') throw error;
    return install();
  }
}

function files(...command: [string, ...string[]]): string[] {
  const [program, ...args] = command;
  return execFileSync(program, args, { encoding: 'utf8', maxBuffer: 16 * MIB })
    .split('\n')
    .filter((line) => line !== '');
}

/** Expects that a command finds its Node.js, its binaries, and its driver. */
function expectClaiming(command: string): void {
  const options = { encoding: 'utf8', env: environment(withoutNode()), cwd: scratch } as const;
  expect(
    execFileSync(command, ['run', '-n', '2', '--', 'sh', '-c', 'echo "$CUDA_VISIBLE_DEVICES"'], options),
  ).toMatch(/^GPU-[\w-]{36},GPU-[\w-]{36}\n$/);
}

/** Expects of a command what every installation of it must do: the tarball, the wheel and the Debian package have the same tree. */
function expectWorking(command: string): void {
  expectClaiming(command);
  const env = environment(withoutNode());
  const run = (...args: string[]) => execFileSync(command, args, { encoding: 'utf8', env, cwd: scratch });
  expect(run('status').match(/free/g)).toHaveLength(2);
  // The server reads the files of its page before it prints the address.
  const served =
    'out=$(mktemp); "$0" web >$out & until grep -q token= $out; do kill -0 $! || exit 1; sleep 0.1; done; kill $!';
  execFileSync('bash', ['-c', served, command], {
    env: { ...env, PATH: `${env.PATH}:/usr/bin:/bin` },
    cwd: scratch,
  });
  const about = '{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"1"}}';
  const input = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":${about}}\n`;
  expect(execFileSync(command, ['mcp'], { encoding: 'utf8', env, cwd: scratch, input })).toMatch(
    /"serverInfo"/,
  );
  const project = mkdtempSync(join(scratch, 'sweep-'));
  run('exp', 'run', '--project', project, '--gpus', '2', '--grid', 'a=1,2', '--', 'true');
  expect(
    files(
      'sh',
      '-c',
      `cat "${project}"/*/final_results.csv "${project}"/final_results.csv 2>/dev/null || true`,
    ),
  ).toHaveLength(3);
}

describe('the npm package', () => {
  let project: string;
  let tarball: string;
  beforeAll(() => {
    tarball = join(releases, `gpu-owner-${version}.tgz`);
    project = join(scratch, 'project');
    mkdirSync(project);
    writeFileSync(
      join(project, 'package.json'),
      JSON.stringify({ name: 'project', type: 'module', private: true }),
    );
    npm(
      project,
      'install',
      tarball,
      '--omit=dev',
      '--ignore-scripts',
      '--prefer-offline',
      '--no-audit',
      '--no-fund',
    );
  }, 120_000);

  it('has what is needed to run, nothing to compile, no script, and no compiled code of V8’s', () => {
    const names = files('tar', 'tf', tarball).map((path) => path.replace(/^package\//, ''));
    expect(names).toEqual(
      expect.arrayContaining([
        'bin/gpu-owner.cjs',
        'dist/index.js',
        'dist/index.d.ts',
        'dist/library.cjs',
        'python/gpu_owner/__init__.py',
        'python/gpu_owner/py.typed',
        'python/hydra_helper.py',
        'python/job/sitecustomize.py',
        'python/search_helper.py',
        ...documents,
      ]),
    );
    expect(names).toContain(`prebuilds/linux-${process.arch}/simulator/libcuda.so.1`);
    expect(
      names.filter((path) =>
        /^(lib|test|bench|build|native|scripts|node_modules)\/|binding\.gyp|\.cache$/.test(path),
      ),
    ).toEqual([]);
    const manifest = JSON.parse(
      execFileSync('tar', ['xOf', tarball, 'package/package.json'], { encoding: 'utf8' }),
    );
    expect(manifest).not.toHaveProperty('scripts');
    expect(manifest).not.toHaveProperty('private');
    expect(Object.keys(manifest.dependencies)).toEqual(['node-gyp-build']);
    expect(statSync(tarball).size).toBeLessThan(4 * MIB);
  });

  it('brings neither a Redis client nor SQLite to those who only claim', () => {
    expect(
      readdirSync(join(project, 'node_modules'))
        .filter((name) => !name.startsWith('.'))
        .sort(),
    ).toEqual(['gpu-owner', 'node-gyp-build']);
  });

  it('has a working command and keeper, and leaves V8’s compiled form for the next start', () => {
    const command = join(project, 'node_modules/.bin/gpu-owner');
    const env = environment(`${join(process.execPath, '..')}:/usr/bin:/bin`);
    const print = ['run', '--', 'sh', '-c', 'echo "$CUDA_VISIBLE_DEVICES"'];
    for (let i = 0; i < 2; i++) {
      expect(execFileSync(command, print, { encoding: 'utf8', env })).toMatch(/^GPU-[0-9a-f-]{36}\n$/);
    }
    execFileSync(command, ['status'], { env });
    const caches = readdirSync(join(project, 'node_modules/gpu-owner/dist')).filter((name) =>
      name.includes('.cache'),
    );
    expect(caches).toEqual(
      ['claim', 'command'].map((name) => `${name}.${process.version}-${process.arch}.cache`),
    );
  });

  it('says what to install for an experiment where Node.js or the package lacks the queue', () => {
    const command = join(project, 'node_modules/gpu-owner/bin/gpu-owner.cjs');
    const env = environment(process.env.PATH);
    const exp = (...more: string[]) =>
      spawnSync(
        process.execPath,
        [command, 'exp', 'run', '--gpus', '1', '--grid', 'a=1', ...more, '--', 'true'],
        { cwd: project, encoding: 'utf8', env },
      );
    const onRedis = exp('--queue', 'redis://127.0.0.1:1?project=x');
    expect(onRedis.status).toBe(69);
    expect(onRedis.stderr).toMatch(/npm install bullmq@[\d.]+ ioredis@/);
    const onSQLite = exp();
    if (process.getBuiltinModule('node:sqlite' as 'node:fs') === undefined) {
      expect(onSQLite.status).toBe(69);
      expect(onSQLite.stderr).toMatch(/npm install @photostructure\/sqlite \(-g if /);
    } else expect(onSQLite.status).toBe(0);
  });

  it('has a working library', () => {
    const program = `
      import { GPUOwner } from 'gpu-owner';
      const owner = new GPUOwner(2);
      console.log(owner.devices.length, process.env.CUDA_VISIBLE_DEVICES.split(',').length);
      owner.release();`;
    const args = ['--input-type=module', '--eval', program];
    const env = { ...process.env, ...environment(process.env.PATH) };
    expect(execFileSync(process.execPath, args, { cwd: project, encoding: 'utf8', env })).toBe('2 2\n');
  });

  it('has types that a strict program can use', () => {
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
        module: 'nodenext',
        typeRoots: [join(root, 'node_modules/@types')],
        types: ['node'],
      },
      files: ['program.ts'],
    };
    writeFileSync(join(project, 'tsconfig.json'), JSON.stringify(options));
    expect(execFileSync(join(root, 'node_modules/.bin/tsc'), ['-p', project], { encoding: 'utf8' })).toBe('');
  });
});

describe('the tarball', () => {
  it('works where it was unpacked, by links from elsewhere, without any Node.js, by a user who may not write there', () => {
    const directory = join(scratch, 'opt');
    mkdirSync(directory);
    execFileSync('tar', [
      'xf',
      join(releases, `gpu-owner-${version}-linux-${process.arch}.tar`),
      '-C',
      directory,
    ]);
    const command = join(directory, `gpu-owner-${version}-linux-${process.arch}`, 'bin/gpu-owner');
    expectWorking(command);
    const [unpacked] = readdirSync(directory);
    expect(documents.filter((path) => !existsSync(join(directory, unpacked ?? '', path)))).toEqual([]);
    const [first, second] = [join(scratch, 'first'), join(scratch, 'second')];
    symlinkSync(command, first);
    symlinkSync(first, second);
    const [said, where] = files(second, '--version');
    expect(said).toBe(version);
    expect(where).toMatch(/opt\/.*\(tarball\)$/);
  });

  it('has what queues on Redis need', () => {
    const lib = join(scratch, 'opt', `gpu-owner-${version}-linux-${process.arch}`, 'lib/gpu-owner');
    const program =
      "const { Queue } = require('bullmq'); console.log(typeof Queue, typeof require('luxon').DateTime)";
    const options = { cwd: lib, encoding: 'utf8' } as const;
    expect(execFileSync(join(lib, 'bin/node'), ['-e', program], options)).toBe('function function\n');
  });
});

describe.skipIf(!hasPip)(
  `the wheel${hasPip ? '' : ' (skipped: python3 has no pip of 22.3 or newer)'}`,
  () => {
    let prefix: string;
    /** A pip of the environment's own would take longer to install than the wheel. */
    const pip = (...args: string[]) =>
      execFileSync('python3', ['-m', 'pip', '--python', join(prefix, 'bin/python'), ...args, '--quiet']);
    beforeAll(() => {
      prefix = join(scratch, 'environment');
      execFileSync('python3', ['-m', 'venv', '--without-pip', prefix]);
      const wheel = readdirSync(releases).find((name) => name.includes('manylinux')) as string;
      pip('install', '--no-index', join(releases, wheel));
    }, 120_000);

    it('has a command that needs no Node.js', () => expectClaiming(join(prefix, 'bin/gpu-owner')));

    it('of the client has the module alone', () => {
      const modules = execFileSync('git', ['ls-files', 'gpu_owner'], {
        cwd: join(root, 'python'),
        encoding: 'utf8',
      })
        .trim()
        .split('\n')
        .sort();
      const wheel = join(releases, `gpu_owner_client-${version}-py3-none-any.whl`);
      expect(statSync(wheel).size).toBeLessThan(MIB / 4);
      const info = `gpu_owner_client-${version}.dist-info`;
      const program = 'import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep="\\n")';
      expect(files('python3', '-c', program, wheel)).toEqual([
        ...modules,
        ...['METADATA', 'WHEEL', 'entry_points.txt', 'RECORD'].map((name) => `${info}/${name}`),
      ]);
    });

    it('has a module that finds its own command, as a notebook’s kernel has none in PATH', () => {
      const program =
        'import gpu_owner\nwith gpu_owner.claim(2) as gpus: print(len(gpus), gpu_owner.__file__)';
      const [line] = files(
        'env',
        '-i',
        ...Object.entries(environment(withoutNode())).map(([key, value]) => `${key}=${value}`),
        join(prefix, 'bin/python'),
        '-c',
        program,
      );
      expect(line).toMatch(/^2 .*environment\/lib\//);
    });

    it('starts no Python, and no program but Node.js before the command’s', () => {
      const command = join(prefix, 'bin/gpu-owner');
      expect(readFileSync(command, 'utf8').split('\n')[0]).toBe('#!/bin/sh');
    });

    it('is gone after pip uninstall, all of it', () => {
      pip('uninstall', '--yes', 'gpu-owner');
      expect(files('find', prefix, '-name', '*gpu*owner*')).toEqual([]);
    });
  },
);

test.each(['.cache/uv/archive-v0/aBcDeF', 'apps/.cache/7ff74b656ed4443'])(
  'an environment that is thrown away runs nothing (%s)',
  (path) => {
    const archive = join(scratch, path);
    mkdirSync(dirname(archive), { recursive: true });
    const unpacked = join(scratch, 'opt', `gpu-owner-${version}-linux-${process.arch}`);
    execFileSync('cp', ['--archive', '--link', unpacked, archive]);
    const command = join(archive, 'bin/gpu-owner');
    const env = environment(withoutNode());
    const { status, stderr } = spawnSync(command, ['run', '--', 'true'], { encoding: 'utf8', env });
    expect({ status, stderr }).toMatchObject({
      status: 69,
      stderr: expect.stringMatching(/uv tool install gpu-owner/),
    });
    expect(spawnSync(command, ['status'], { env }).status).toBe(0);
  },
);

/** A package can be installed for real into an empty directory by root, who may change the root directory for its scripts. */
const whyNotDpkg = hasDpkg ? (process.geteuid?.() === 0 ? null : 'needs root') : 'needs dpkg';

describe.skipIf(whyNotDpkg)(`the Debian package${whyNotDpkg ? ` (skipped: ${whyNotDpkg})` : ''}`, () => {
  let directory: string;
  let deb: string;
  let services: string[];
  const inside = (path: string) => join(directory, path);
  const place = (path: string, text: string, mode = 0o644) => {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text, { mode });
  };
  const dpkg = (...args: string[]) => {
    const env = { ...process.env, PATH: '/usr/sbin:/usr/bin:/sbin:/bin' };
    const { status, stderr } = spawnSync('dpkg', [`--root=${directory}`, '--force-unsafe-io', ...args], {
      encoding: 'utf8',
      env,
    });
    // The directory's own /usr/bin isn't empty then.
    expect({ status, stderr: stderr.replace(/.*not empty so not removed\n/g, '') }).toEqual({
      status: 0,
      stderr: '',
    });
  };
  /** The questions of the scripts to systemd since the last look. */
  const calls = () => {
    const lines = existsSync(inside('calls')) ? readFileSync(inside('calls'), 'utf8').split('\n') : [];
    rmSync(inside('calls'), { force: true });
    return lines.filter((line) => line !== '');
  };
  const remains = () =>
    files('find', directory, '-name', '*gpu*owner*', '-not', '-path', '*/dpkg/*', '-printf', '/%P\n');
  const MADE = ['systemd-tmpfiles --create gpu-owner.conf', 'systemctl daemon-reload'];

  beforeAll(() => {
    directory = join(scratch, 'debian');
    deb = join(releases, readdirSync(releases).find((name) => name.endsWith('.deb')) as string);
    // All that the package depends on, and what its scripts run.
    for (const name of ['bin', 'lib', 'lib64']) {
      mkdirSync(inside(`usr/${name}`), { recursive: true });
      symlinkSync(`usr/${name}`, inside(name));
    }
    for (const path of ['var/lib/dpkg/info', 'var/lib/dpkg/updates', 'run/systemd/system'])
      mkdirSync(inside(path), { recursive: true });
    const needed = ['libc6', 'libgcc-s1', 'libstdc++6'];
    place(inside('var/lib/dpkg/status'), execFileSync('dpkg-query', ['-s', ...needed], { encoding: 'utf8' }));
    for (const name of needed.flatMap((each) => [each, `${each}:${dpkgArch}`]))
      place(inside(`var/lib/dpkg/info/${name}.list`), '');
    for (const name of ['sh', 'install', 'rm', 'rmdir']) {
      const libraries = execFileSync('ldd', [`/usr/bin/${name}`], { encoding: 'utf8' }).match(/\/\S+/g) ?? [];
      for (const path of [`/usr/bin/${name}`, ...libraries])
        cpSync(path, inside(path), { dereference: true, recursive: true });
    }
    for (const name of ['systemctl', 'systemd-tmpfiles'])
      place(inside(`usr/bin/${name}`), `#!/bin/sh\necho "${name} $*" >>/calls\n`, 0o755);
    place(inside('dev/null'), '');
  });

  it('is installed over an earlier version, whose files go, and whose changed configuration stays', () => {
    const old = join(scratch, 'old-deb');
    mkdirSync(old);
    execFileSync('dpkg-deb', ['-e', deb, join(old, 'DEBIAN')]);
    const control = readFileSync(join(old, 'DEBIAN/control'), 'utf8');
    writeFileSync(join(old, 'DEBIAN/control'), control.replace(/^Version: .*/m, 'Version: 0.0.9'));
    place(join(old, 'usr/lib/gpu-owner/old.js'), '');
    place(join(old, 'etc/gpu-owner/config.yaml'), readFileSync(join(root, 'examples/config.yaml'), 'utf8'));
    execFileSync('dpkg-deb', ['--root-owner-group', '-Zgzip', '--build', old, `${old}.deb`]);
    dpkg('-i', `${old}.deb`);
    expect(calls()).toEqual(MADE);
    const file = inside('etc/gpu-owner/config.yaml');
    appendFileSync(file, '# changed\n');
    place(inside('usr/lib/gpu-owner/dist/claim.v20.cache'), '');
    dpkg('-i', deb);
    services = readdirSync(inside('usr/lib/systemd/system')).sort();
    expect(services).toContain('gpu-owner-enforce.service');
    const again = [...MADE, `systemctl try-restart ${services.join(' ')}`];
    expect(calls()).toEqual(again);
    expect(readFileSync(file, 'utf8')).toMatch(/# changed\n$/);
    expect(
      ['old.js', 'dist/claim.v20.cache'].filter((name) => existsSync(inside(`usr/lib/gpu-owner/${name}`))),
    ).toEqual([]);
    dpkg('-i', deb);
    expect(calls()).toEqual(again);
  });

  it('has a working command, pages, completion, units that are off, and a configuration that is accepted', () => {
    expectClaiming(inside('usr/bin/gpu-owner'));
    const wanted = [
      'usr/lib/tmpfiles.d/gpu-owner.conf',
      'usr/lib/systemd/system/gpu-owner-enforce.service',
      'usr/lib/systemd/system/gpu-owner-metrics.timer',
      'usr/lib/systemd/user/gpu-owner-worker.service',
      'usr/lib/python3/dist-packages/gpu_owner/__init__.py',
      'usr/share/bash-completion/completions/gpu-owner',
      'usr/share/zsh/vendor-completions/_gpu-owner',
      'usr/share/fish/vendor_completions.d/gpu-owner.fish',
      ...['copyright', ...documents].map((name) => `usr/share/doc/gpu-owner/${name}`),
      ...['', '-run', '-exp-run', '-status'].map((name) => `usr/share/man/man1/gpu-owner${name}.1.gz`),
    ];
    expect(wanted.filter((path) => !existsSync(inside(path)))).toEqual([]);
    expect(existsSync(inside('etc/systemd'))).toBe(false);
    const ofPackage = ['usr/lib/gpu-owner', 'usr/share', 'usr/lib/systemd', 'etc', 'var/lib/gpu-owner'].map(
      inside,
    );
    const strange = [
      '-not',
      '-uid',
      '0',
      '-o',
      '-not',
      '-gid',
      '0',
      '-o',
      '-perm',
      '/6000',
      '-o',
      '-perm',
      '/022',
    ];
    expect(
      files('find', ...ofPackage, '-not', '-type', 'l', '(', ...strange, ')', '-printf', '/%P %m\n'),
    ).toEqual(['/usage 1777']);
    const modules = files('find', directory, '-name', 'claims.py', '-type', 'f');
    expect(modules.map((path) => relative(directory, path))).toEqual([
      'usr/lib/gpu-owner/python/gpu_owner/claims.py',
    ]);
    const file = inside('etc/gpu-owner/config.yaml');
    const text = readFileSync(file, 'utf8');
    writeFileSync(file, text.replace(/^#(?=\w+:)/gm, ''));
    expect(readFileSync(file, 'utf8')).toMatch(/^exclude: /m);
    const { status, stderr } = spawnSync(inside('usr/bin/gpu-owner'), ['status'], {
      encoding: 'utf8',
      env: { ...environment(withoutNode()), GPU_OWNER_MACHINE_CONFIG: file },
    });
    expect({ status, stderr }).toMatchObject({ status: 0, stderr: '' });
  });

  it('stops services and leaves configuration and usage when it is removed, and nothing when it is purged', () => {
    place(inside('var/lib/gpu-owner/usage/0-2026-01.jsonl'), '');
    place(inside('usr/lib/gpu-owner/python/gpu_owner/__pycache__/claims.pyc'), '');
    dpkg('-r', 'gpu-owner');
    expect(calls()).toEqual([`systemctl disable --now --quiet ${services.join(' ')}`]);
    expect(remains().sort()).toEqual(['/etc/gpu-owner', '/var/lib/gpu-owner']);
    expect(existsSync(inside('var/lib/gpu-owner/usage/0-2026-01.jsonl'))).toBe(true);
    dpkg('-P', 'gpu-owner');
    expect(calls()).toEqual([]);
    expect(remains()).toEqual([]);
  });
});

describe('binaries of prebuilds/', () => {
  let clone: string;
  let prebuilds: string;
  const packPrebuilt = () =>
    spawnSync(
      process.execPath,
      [join(clone, 'scripts/package.js'), '--prebuilt', '--quick', '--out', join(clone, 'release'), 'npm'],
      { encoding: 'utf8' },
    );
  /** As `npm run prebuild` ends, whose compiling takes minutes. */
  const mark = () => {
    const program = "import { markUpToDate } from './scripts/prebuild.js'; markUpToDate(process.argv[1]);";
    execFileSync(process.execPath, ['--input-type=module', '-e', program, prebuilds], { cwd: clone });
  };
  beforeAll(() => {
    clone = join(scratch, 'clone');
    cloneSources(clone);
    prebuilds = join(clone, 'prebuilds', `linux-${process.arch}`);
    cpSync(binaries(), prebuilds, { recursive: true });
  });

  const refusal = () => `${prebuilds} was not made from these sources: run npm run prebuild`;

  it('are refused if making them was interrupted', () =>
    expect(packPrebuilt()).toMatchObject({ status: 1, stderr: expect.stringContaining(refusal()) }));

  it('are refused if a source has changed since', () => {
    mark();
    appendFileSync(join(clone, 'native/addon.cc'), '// changed\n');
    expect(packPrebuilt()).toMatchObject({ status: 1, stderr: expect.stringContaining(refusal()) });
  });
});

it('a clone compiles nothing on other systems', () => {
  const elsewhere = "Object.defineProperty(process, 'platform', { value: 'darwin' });";
  const args = ['--import', `data:text/javascript,${encodeURIComponent(elsewhere)}`, 'scripts/install.js'];
  const output = execFileSync(process.execPath, args, { cwd: root, encoding: 'utf8' });
  expect(output).toContain('ERR_UNSUPPORTED_PLATFORM');
});
