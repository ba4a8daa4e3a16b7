// bin/gpu-owner.cjs: the shell part that records what Node.js would destroy, and the JavaScript part that checks what it
// is started with. Tried with a stand-in for the bundled command that prints what it got.
import { type SpawnSyncOptions, spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { binaries } from '../support/binaries.ts';

const packageRoot = resolve(import.meta.dirname, '../..');
let root: string;
let command: string;
/** Beside the launcher it finds out for it what was inherited. */
const PROGRAM = 'gpu-owner-keeper';
let program: string;

beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'gpu-owner-command-'));
  mkdirSync(join(root, 'bin'));
  mkdirSync(join(root, 'dist'));
  mkdirSync(join(root, 'build/Release'), { recursive: true });
  program = join(root, 'build/Release', PROGRAM);
  command = join(root, 'bin/gpu-owner.cjs');
  cpSync(join(packageRoot, 'bin/gpu-owner.cjs'), command);
  writeFileSync(
    join(root, 'dist/gpu-owner.cjs'),
    'process.stdout.write(JSON.stringify({ args: process.argv.slice(2), env: process.env }));',
  );
});
afterAll(() => rmSync(root, { recursive: true }));

interface Started {
  args: string[];
  env: Record<string, string>;
}

function start(file: string, args: readonly string[], options: SpawnSyncOptions = {}): Started {
  const { stdout, stderr, status } = spawnSync(file, args, { ...options, encoding: 'utf8' });
  expect(stderr).toBe('');
  expect(status).toBe(0);
  return JSON.parse(stdout as string);
}

function inherited({ env }: Started): Record<string, string> {
  const entries = (env.GPU_OWNER_INHERITED ?? '').split(' ').map((entry) => entry.split('='));
  return Object.fromEntries(entries);
}

/** Shells that may be /bin/sh, as far as they are installed. */
const shells = [['dash'], ['bash', '--posix'], ['busybox', 'sh']].filter(
  ([file = '']) => spawnSync(file, ['-c', ':']).error === undefined,
);

const ways = shells.map((words) => ({ name: words.join(' '), words }));

describe.each(ways)('the launcher under $name', ({ words }) => {
  const [shell = '', ...options] = words;

  beforeAll(() => copyFileSync(join(binaries(), PROGRAM), program));
  afterAll(() => rmSync(program));

  it('passes arguments on as they are', () => {
    const args = ['run', '-n', '2', '--', 'a b', '', '*', '"\'', '$HOME', 'ü\n'];
    expect(start(shell, [...options, command, ...args]).args).toEqual(args);
  });

  it('records ignored signals, the soft limit of open files, and inherited descriptors but none of its own', () => {
    const run = [...options, command].map((word) => `'${word}'`).join(' ');
    const close =
      'for fd in /proc/self/fd/*; do case ${fd##*/} in [012]) ;; *) eval "exec ${fd##*/}>&-" ;; esac; done';
    const under = (before: string, descriptors: string) =>
      inherited(
        start('bash', ['-c', `${before}; ${close} 2>/dev/null; exec ${shell} ${run} ${descriptors}`]),
      );
    const some = under("trap '' INT QUIT USR2; ulimit -Sn 321", '5</dev/null 7>/dev/null');
    expect(BigInt(`0x${some.sigign}`) & 0xfffn).toBe(0x806n);
    expect(some.nofile).toBe('321');
    expect(some.fds?.split(',').sort()).toEqual(['5', '7']);
    const none = under("trap '' HUP", '');
    expect(BigInt(`0x${none.sigign}`) & 0xfffn).toBe(0x001n);
    expect(none.fds).toBeUndefined();
  });

  it("leaves the environment's own variables alone", () => {
    const env = {
      PATH: process.env.PATH,
      a: '1',
      fd: '2',
      key: '3',
      value: '4',
      line: '5',
      GPU_OWNER_INHERITED: 'old',
    };
    const started = start(shell, [...options, command], { env });
    expect(started.env).toMatchObject({ a: '1', fd: '2', key: '3', value: '4', line: '5' });
    expect(started.env.GPU_OWNER_INHERITED).toMatch(/^sigign=[0-9a-f]{16} nofile=\w+( fds=[\d,]+)?$/);
    const own = Object.keys(started.env).filter((name) => name.toLowerCase().startsWith('gpu_owner'));
    expect(own).toEqual(['GPU_OWNER_INHERITED']);
  });

  it('keeps NODE_EXTRA_CA_CERTS from Node.js', () => {
    const under = (NODE_EXTRA_CA_CERTS: string) =>
      start(shell, [...options, command], { env: { PATH: process.env.PATH, NODE_EXTRA_CA_CERTS } }).env;
    const plain = under('/nowhere/company-ca_1.pem');
    expect(plain.NODE_EXTRA_CA_CERTS).toBeUndefined();
    expect(plain.GPU_OWNER_EXTRA_CA_CERTS).toBe('/nowhere/company-ca_1.pem');
    const empty = under('');
    expect(empty.NODE_EXTRA_CA_CERTS).toBe('');
    expect(empty.GPU_OWNER_EXTRA_CA_CERTS).toBeUndefined();
    // Node.js warns of none that is there, and JavaScript may change these bytes.
    const odd = join(root, 'ü.pem');
    writeFileSync(odd, '');
    expect(under(odd).GPU_OWNER_EXTRA_CA_CERTS).toBeUndefined();
  });

  it('keeps variables that a shell cannot name, for commands under run', () => {
    const env = { PATH: process.env.PATH, 'a.b-c': '1=2', 'BASH_FUNC_module%%': '() {  echo "loaded $1"\n}' };
    for (const args of [['run'], ['--simulate', '2', 'run', 'x']]) {
      const started = start(shell, [...options, command, ...args], { env });
      // bash keeps them.
      const bytes = Buffer.from(started.env.GPU_OWNER_DROPPED_0 ?? '', 'hex')
        .toString()
        .split('\0');
      const all = [...bytes, ...Object.entries(started.env).map((entry) => entry.join('='))];
      expect(all).toEqual(expect.arrayContaining(Object.entries(env).map((entry) => entry.join('='))));
      expect(started.env.GPU_OWNER_INHERITED).toMatch(shell === 'bash' ? /^(?!.*dropped)/ : / dropped=1$/);
    }
  });
});

describe(`the launcher’s search for ${PROGRAM}`, () => {
  const INHERITED = 'sigign=00000000000000a5 nofile=7';
  /** A stand-in that tells something of its own. */
  function standIn(directory: string, script = `echo '${INHERITED}'`): void {
    mkdirSync(directory, { recursive: true });
    writeFileSync(join(directory, PROGRAM), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  }
  const found = (file: string) => start(file, ['run', 'x']).env.GPU_OWNER_INHERITED;

  /** A package installed in this directory, and a link to its command. */
  function installed(name: string, place: string, link: string): { directory: string; file: string } {
    const directory = join(root, name, place);
    for (const part of ['bin', 'dist']) cpSync(join(root, part), join(directory, part), { recursive: true });
    const file = join(root, name, link);
    mkdirSync(dirname(file), { recursive: true });
    symlinkSync(relative(dirname(file), join(directory, 'bin/gpu-owner.cjs')), file);
    return { directory, file };
  }

  it.each([
    ['as npm installs it in a project', 'node_modules/gpu-owner', 'node_modules/.bin/gpu-owner'],
    ['as npm installs it for all', 'lib/node_modules/gpu-owner', 'bin/gpu-owner'],
  ])('finds it in a package, %s', (name, place, link) => {
    const { directory, file } = installed(name, place, link);
    standIn(join(directory, 'build/Release'));
    expect(found(file)).toBe(INHERITED);
    expect(found(join(directory, 'bin/gpu-owner.cjs'))).toBe(INHERITED);
  });

  it('finds it among prebuilt ones for this processor', () => {
    if (!existsSync('/lib64/ld-linux-x86-64.so.2') || existsSync('/lib/ld-linux-aarch64.so.1'))
      return console.log('not tested: needs x86-64 with glibc');
    const { directory, file } = installed(
      'prebuilt',
      'node_modules/gpu-owner',
      'node_modules/.bin/gpu-owner',
    );
    standIn(join(directory, 'prebuilds/linux-arm64'), 'echo sigign=bad');
    expect(found(file)).not.toMatch(/bad/);
    standIn(join(directory, 'prebuilds/linux-x64'));
    expect(found(file)).toBe(INHERITED);
  });

  it('skips one that fails, or is somebody else’s', () => {
    const { directory, file } = installed('failing', 'lib/node_modules/gpu-owner', 'bin/gpu-owner');
    for (const script of ['exit 1', 'echo nonsense']) {
      standIn(join(directory, 'build/Release'), script);
      expect(found(file)).toBe('');
    }
    // Another package in the place where a link like this one would have its own.
    standIn(join(root, 'failing/build/Release'));
    expect(found(file)).toBe('');
  });
});

it('the launcher works through symbolic links', () => {
  symlinkSync(command, join(root, 'link'));
  symlinkSync('link', join(root, 'link to link'));
  expect(start(join(root, 'link to link'), ['x']).args).toEqual(['x']);
  expect(start('gpu-owner', ['x'], { env: { PATH: `${linkDirectory()}:${process.env.PATH}` } }).args).toEqual(
    ['x'],
  );
});

function linkDirectory(): string {
  const directory = join(root, 'links');
  mkdirSync(directory);
  symlinkSync('../bin/gpu-owner.cjs', join(directory, 'gpu-owner'));
  return directory;
}

it('the launcher works without a shell', () => {
  expect(start(process.execPath, [command, 'x']).args).toEqual(['x']);
});

it('the launcher takes the Node.js that GPU_OWNER_NODE names', () => {
  const node = join(root, 'my node');
  writeFileSync(node, `#!/bin/sh\nMINE=yes exec '${process.execPath}' "$@"\n`);
  chmodSync(node, 0o755);
  expect(start(command, [], { env: { PATH: '/nowhere', GPU_OWNER_NODE: node } }).env.MINE).toBe('yes');
});

describe('the launcher says what is wrong', () => {
  const fail = (options: SpawnSyncOptions) => {
    const { stderr, status } = spawnSync(command, ['status'], { ...options, encoding: 'utf8' });
    return { stderr, status };
  };

  it('when Node.js is not found', () => {
    const { stderr, status } = fail({ env: { PATH: '/nowhere' } });
    expect(status).toBe(127);
    expect(stderr).toMatch(/^gpu-owner: node: not found; .*20\.19.*GPU_OWNER_NODE.*\n$/);
  });

  it('when Node.js is too old', () => {
    const old = join(root, 'old.cjs');
    writeFileSync(old, "Object.defineProperty(process.versions, 'node', { value: '18.20.4' });");
    const { stderr, status } = fail({ env: { PATH: process.env.PATH, NODE_OPTIONS: `--require=${old}` } });
    expect(status).toBe(70);
    expect(stderr).toMatch(
      /^gpu-owner: Node\.js 18\.20\.4 \(.*\) is too old: 20\.19, or 22\.3 or newer, is needed\. The wheel brings its own: uv tool install gpu-owner, or pipx install gpu-owner\n$/,
    );
  });

  it('when Node.js is Deno', () => {
    const deno = join(root, 'deno.cjs');
    writeFileSync(deno, "Object.defineProperty(process.versions, 'deno', { value: '2.1.0' });");
    const { stderr, status } = fail({ env: { PATH: process.env.PATH, NODE_OPTIONS: `--require=${deno}` } });
    expect(status).toBe(70);
    expect(stderr).toBe(
      "gpu-owner: Deno 2.1.0 can't run gpu-owner, which needs Node.js 20.19, or 22.3 or newer.\n",
    );
  });

  it('when the package is not built', () => {
    const clone = join(root, 'clone');
    mkdirSync(join(clone, 'bin'), { recursive: true });
    cpSync(command, join(clone, 'bin/gpu-owner.cjs'));
    const { stderr, status } = spawnSync(join(clone, 'bin/gpu-owner.cjs'), [], { encoding: 'utf8' });
    expect(status).toBe(70);
    expect(stderr).toBe(
      `gpu-owner: not built: ${join(clone, 'dist/gpu-owner.cjs')} is missing; run "npm ci" in ${clone}\n`,
    );
  });
});
