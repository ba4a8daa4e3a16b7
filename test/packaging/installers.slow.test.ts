// The wheel as real pipx, uv and Jupyter have it. All of them come from PyPI, or ask it.
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { whyUnchanged } from '../support/changes.ts';
import { root } from '../support/machine.ts';
import { cloneSources, pack } from '../support/packages.ts';

const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
const OLDER = '0.0.1';
/** Old versions of pipx make an environment for pip itself first, in each home. */
const MAX_TEST_MS = 300_000;
const lookUp = '-m pip index versions uv --retries 0 --timeout 10'.split(' ');
const PACKAGING = [
  ...['test/packaging', 'test/support/packages.ts', 'scripts', 'bin', 'package.json', 'package-lock.json'],
  ...['python/*.py', 'python/*.toml', 'lib/native.ts', 'docs/installation.md'],
];
const whyNot =
  whyUnchanged(PACKAGING) ?? (spawnSync('python3', lookUp).status === 0 ? null : 'PyPI can’t be reached');
const titled = (title: string, reason: string | null) =>
  reason === null ? title : `${title} (skipped: ${reason})`;

let scratch: string;
/** A virtual environment with uv and pipx. */
let tools: string;

const wheelsOf = (of: string) => join(scratch, 'wheels', of);
const wheelOf = (of: string) =>
  join(wheelsOf(of), readdirSync(wheelsOf(of)).find((name) => name.endsWith('.whl')) as string);

function replaceVersion(file: string): void {
  const text = readFileSync(file, 'utf8');
  writeFileSync(file, text.replace(`"${version}"`, `"${OLDER}"`));
}

beforeAll(() => {
  scratch = mkdtempSync(join(tmpdir(), 'gpu-owner-installers-'));
  if (whyNot !== null) return;
  pack(wheelsOf(version), ['wheel']);
  const clone = join(scratch, 'clone');
  cloneSources(clone, ['node_modules', 'dist', 'build']);
  replaceVersion(join(clone, 'package.json'));
  replaceVersion(join(clone, 'python/gpu_owner/__init__.py'));
  pack(wheelsOf(OLDER), ['wheel'], clone);
  tools = join(scratch, 'tools');
  execFileSync('python3', ['-m', 'venv', tools]);
  execFileSync(join(tools, 'bin/pip'), ['install', '--quiet', 'uv', 'pipx'], { stdio: 'pipe' });
}, MAX_TEST_MS);
afterAll(() => rmSync(scratch, { recursive: true, force: true }), MAX_TEST_MS);

/** As a user's shell has it, in an empty home; what pip and uv are told about PyPI stays. */
function userOf() {
  const home = mkdtempSync(join(scratch, 'home-'));
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    HOME: home,
    PATH: '/usr/bin:/bin',
    GPU_OWNER_SIMULATE: '4',
    GPU_OWNER_SIMULATE_DIR: join(home, 'machines'),
    GPU_OWNER_MACHINE_CONFIG: '/dev/null',
  };
  const spawn = (program: string, args: string[], more: NodeJS.ProcessEnv = {}) =>
    spawnSync(program, args, { encoding: 'utf8', env: { ...env, ...more }, cwd: home, timeout: MAX_TEST_MS });
  const run = (program: string, args: string[], more: NodeJS.ProcessEnv = {}) => {
    const { status, stdout, stderr } = spawn(program, args, more);
    expect({ status, stderr: status === 0 ? '' : stderr }).toEqual({ status: 0, stderr: '' });
    return stdout;
  };
  return { home, spawn, run };
}

interface Installer {
  program: () => string;
  install: (directory: string) => string[];
  upgrade: (directory: string) => string[];
  replace: (wheel: string) => string[];
  uninstall: string[];
  /** Ways to run the command in an environment that is thrown away, and variables that put it elsewhere. */
  once: [args: (wheel: string) => string[], variable?: string][];
}

const pipxOf = (program: () => string): Installer => {
  const from = (directory: string) => `--pip-args=--no-index --find-links=${directory}`;
  const once = (wheel: string) => ['run', '--spec', wheel, 'gpu-owner'];
  return {
    program,
    install: (directory) => ['install', 'gpu-owner', from(directory)],
    upgrade: (directory) => ['upgrade', 'gpu-owner', from(directory)],
    replace: (wheel) => ['install', '--force', wheel],
    uninstall: ['uninstall', 'gpu-owner'],
    once: [[once], [once, 'PIPX_HOME'], [once, 'XDG_CACHE_HOME']],
  };
};
const uv: Installer = {
  program: () => join(tools, 'bin/uv'),
  install: (directory) => ['tool', 'install', 'gpu-owner', '--no-index', '--find-links', directory],
  upgrade: () => ['tool', 'upgrade', 'gpu-owner'],
  replace: (wheel) => ['tool', 'install', '--force', wheel],
  uninstall: ['tool', 'uninstall', 'gpu-owner'],
  once: [
    [(wheel) => ['tool', 'run', '--from', wheel, 'gpu-owner']],
    [(wheel) => ['tool', 'run', '--from', wheel, 'gpu-owner'], 'UV_CACHE_DIR'],
    [(wheel) => ['run', '--no-project', '--with', wheel, 'gpu-owner']],
  ],
};
const SYSTEM_PIPX = '/usr/bin/pipx';
const hasPipx = spawnSync(SYSTEM_PIPX, ['--version']).status === 0;
const INSTALLERS: [name: string, reason: string | null, Installer][] = [
  ['pipx of the system', hasPipx ? null : `${SYSTEM_PIPX} is missing`, pipxOf(() => SYSTEM_PIPX)],
  ['pipx of PyPI', null, pipxOf(() => join(tools, 'bin/pipx'))],
  ['uv', null, uv],
];

describe.each(INSTALLERS)('%s', (_, reason, installer) => {
  const skipped = whyNot ?? reason;
  const claim = 'import gpu_owner; print(len(gpu_owner.claim(2)))';

  it.skipIf(skipped !== null)(
    titled('installs, upgrades, replaces and removes it', skipped),
    () => {
      const { home, run } = userOf();
      const command = join(home, '.local/bin/gpu-owner');
      const installed = () => run(command, ['--version']).split('\n')[0];
      const offered = join(home, 'offered');
      const offer = (wheel: string) => cpSync(wheel, join(offered, basename(wheel)));

      offer(wheelOf(OLDER));
      run(installer.program(), installer.install(offered));
      expect(installed()).toBe(OLDER);
      expect(run(command, ['status']).match(/free$/gm)).toHaveLength(4);
      expect(run(command, ['run', '-n', '2', '--', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES'])).toMatch(
        /^GPU-[^,]+,GPU-[^,]+\n$/,
      );
      offer(wheelOf(version));
      run(installer.program(), installer.upgrade(offered));
      expect(installed()).toBe(version);

      const environment = dirname(dirname(realpathSync(command)));
      expect(run(join(environment, 'bin/python'), ['-c', claim], { PATH: '/nonexistent' })).toBe('2\n');
      cpSync(join(root, 'python/gpu_owner'), join(home, 'gpu_owner'), { recursive: true });
      expect(run('/usr/bin/python3', ['-c', claim])).toBe('2\n');
      rmSync(join(home, 'gpu_owner'), { recursive: true });

      run(installer.program(), installer.replace(wheelOf(OLDER)));
      expect(installed()).toBe(OLDER);
      run(installer.program(), installer.uninstall);
      // The newer pipx keeps a lock file for each name that it has seen.
      const ours = ['-iname', '*gpu?owner*', '-not', '-name', '.gpu-owner.lock'];
      expect(run('find', [join(home, '.local'), ...ours])).toBe('');
    },
    MAX_TEST_MS,
  );

  it.skipIf(skipped !== null)(
    titled('runs no job in an environment that is thrown away', skipped),
    () => {
      for (const [args, variable] of installer.once) {
        const { home, spawn } = userOf();
        const more = variable === undefined ? {} : { [variable]: join(home, 'elsewhere') };
        const once = (...words: string[]) =>
          spawn(installer.program(), [...args(wheelOf(version)), ...words], more);
        expect(once('status')).toMatchObject({ status: 0, stdout: expect.stringMatching(/free\n$/) });
        expect(once('run', '--', 'true')).toMatchObject({
          status: 69,
          stderr: expect.stringContaining('this gpu-owner is in a throw-away environment'),
        });
      }
    },
    MAX_TEST_MS,
  );
});

it.skipIf(whyNot !== null)(
  titled('a cell in a kernel of Jupyter claims GPUs until the kernel ends', whyNot),
  () => {
    const environment = join(scratch, 'notebook');
    execFileSync('python3', ['-m', 'venv', environment]);
    const packages = ['ipykernel', 'jupyter_client', wheelOf(version)];
    execFileSync(join(environment, 'bin/pip'), ['install', '--quiet', ...packages], { stdio: 'pipe' });
    const { run } = userOf();
    expect(run(join(environment, 'bin/python'), [join(import.meta.dirname, 'fixtures/kernel.py')])).toBe(
      'None\n[0, 1] True\n2\n',
    );
  },
  MAX_TEST_MS,
);
