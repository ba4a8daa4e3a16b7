// npm run test:systems: installs every package of release/ in fresh root file systems of Debian, without compiler, Node.js and network,
// and uses it there as an unprivileged user: status, run, Python's claim, the environment of a notebook's kernel, an experiment, the
// recipe of docs/simulator.md with pytest, upgrade under a job that runs, removal. Needs root, debootstrap, and Debian's packages; file systems are kept for the next time.
//
// Usage: npm run test:systems [-- --release DIR] [--cache DIR] [SUITE...]     default: bullseye bookworm trixie
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { execFileSync, spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';

const root = dirname(import.meta.dirname);
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { release: { type: 'string' }, cache: { type: 'string' } },
});
const release = resolve(values.release ?? join(root, 'release'));
const cache = resolve(values.cache ?? '/var/cache/gpu-owner-systems');
const suites = positionals.length > 0 ? positionals : ['bullseye', 'bookworm', 'trixie'];
const ARCH = { x64: ['linux-x64', 'x86_64', 'amd64'], arm64: ['linux-arm64', 'aarch64', 'arm64'] }[
  process.arch
];
const USER = 1000;
const MAX_START_MS = 20;
const OLDER_VERSION = '0.0.1';

/**
 * Where each package's command is, how it comes and goes; `user` installs without root. Paths are those inside. The upgrade is
 * from the package of `older`, or else from the same package.
 */
const PACKAGES = {
  tarball: {
    pattern: new RegExp(`-${ARCH[0]}\\.tar\\.xz$`),
    user: true,
    install: (file) => `mkdir -p ~/opt && tar xf ${file} -C ~/opt --strip-components=1`,
    remove: 'rm -r ~/opt',
    command: '/home/user/opt/bin/gpu-owner',
    node: '/home/user/opt/lib/gpu-owner/bin/node',
    python: 'PYTHONPATH=$HOME/opt/lib/gpu-owner/python python3',
  },
  wheel: {
    pattern: new RegExp(`_${ARCH[1]}\\.whl$`),
    user: true,
    install: (file) =>
      `[ -d ~/venv ] || python3 -m venv ~/venv; ~/venv/bin/pip install --quiet --no-index --force-reinstall ${file}`,
    remove: '~/venv/bin/pip uninstall --quiet --yes gpu-owner',
    command: '/home/user/venv/bin/gpu-owner',
    node: '/home/user/venv/lib/gpu-owner/bin/node',
    python: '~/venv/bin/python',
  },
  deb: {
    pattern: new RegExp(`_${ARCH[2]}\\.deb$`),
    user: false,
    // As there is no network, it may need nothing that a system of Debian lacks.
    install: (file) => `apt-get install --yes --quiet ${file}`,
    older: makeOlderDebian,
    upgrade: (file) => `echo '# kept' >>/etc/gpu-owner/config.yaml; apt-get install --yes --quiet ${file}
      [ "$(dpkg-query --show --showformat '\${Version}' gpu-owner)" != ${OLDER_VERSION} ]`,
    remove: `apt-get remove --yes --quiet gpu-owner; [ ! -e /usr/bin/gpu-owner ]; grep -q kept /etc/gpu-owner/config.yaml
      apt-get purge --yes --quiet gpu-owner`,
    command: '/usr/bin/gpu-owner',
    node: '/usr/lib/gpu-owner/bin/node',
    python: 'python3',
  },
};

/** A system of its own: no network, no processes but those inside. */
class System {
  constructor(directory) {
    this.directory = directory;
  }

  run(script, { user = true } = {}) {
    const id = user ? USER : 0;
    const inside = [
      'unshare',
      '--mount',
      '--net',
      '--pid',
      '--fork',
      '--kill-child',
      'sh',
      '-c',
      `mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot --userspec=${id}:${id} "$0" "$@"`,
      this.directory,
      '/usr/bin/env',
      '-i',
      `HOME=${user ? '/home/user' : '/root'}`,
      'PATH=/usr/sbin:/usr/bin:/sbin:/bin',
      'sh',
      '-ec',
      script,
    ];
    const { status, stdout, stderr } = spawnSync(inside[0], inside.slice(1), {
      encoding: 'utf8',
      cwd: '/',
      timeout: 300_000,
    });
    if (status !== 0) throw new Error(`exit code ${status} of: ${script}\n${stdout}${stderr}`);
    return stdout;
  }

  /** Every file, link and directory. */
  files() {
    return new Set(
      this.run('find / -xdev -path /proc -prune -o -path /dev -prune -o -print', {
        user: false,
      }).split('\n'),
    );
  }
}

function prepare(suite) {
  const base = join(cache, suite);
  if (!existsSync(join(base, 'complete'))) {
    rmSync(base, { recursive: true, force: true });
    mkdirSync(cache, { recursive: true });
    execFileSync(
      'debootstrap',
      ['--variant=minbase', '--include=python3,python3-venv,xz-utils', suite, base],
      {
        stdio: ['ignore', 'ignore', 'inherit'],
      },
    );
    writeFileSync(join(base, 'complete'), '');
  }
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-system-'));
  execFileSync('cp', ['-a', `${base}/.`, directory]);
  const system = new System(directory);
  system.run('useradd --create-home --uid 1000 user', { user: false });
  for (const name of ['gcc', 'cc', 'node', 'npm']) {
    if (system.run(`command -v ${name} || true`) !== '') throw new Error(`${suite} has ${name}`);
  }
  return system;
}

/** The same package with an older version. */
function makeOlderDebian(file) {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-older-'));
  try {
    const tree = join(directory, 'tree');
    execFileSync('dpkg-deb', ['--raw-extract', file, tree]);
    const control = join(tree, 'DEBIAN/control');
    writeFileSync(
      control,
      readFileSync(control, 'utf8').replace(/^Version: .*$/m, `Version: ${OLDER_VERSION}`),
    );
    const older = file.replace(/_[^_]+(?=_)/, `_${OLDER_VERSION}`);
    execFileSync('dpkg-deb', ['--root-owner-group', '-Znone', '--build', tree, older], { stdio: 'pipe' });
    return older;
  } finally {
    rmSync(directory, { recursive: true });
  }
}

/** For the recipe of docs/simulator.md, as wheels for any version of Python; there is no network inside. */
function downloadWheels(directory) {
  const names = ['pytest', 'nvidia-ml-py', 'exceptiongroup', 'tomli', 'typing-extensions'];
  const which = ['--only-binary=:all:', '--python-version=3.9', '--platform=any'];
  execFileSync('pip', [
    'download',
    '--quiet',
    '--disable-pip-version-check',
    ...which,
    '--dest',
    directory,
    ...names,
  ]);
}

/** How much longer the start of a command takes than that of its Node.js: the median of pairs, in ms. */
const START = (command, node) => `
  const { spawnSync } = require('node:child_process');
  const once = (words) => {
    const begin = process.hrtime.bigint();
    if (spawnSync(words[0], words.slice(1)).status !== 0) throw new Error(words.join(' '));
    return Number(process.hrtime.bigint() - begin) / 1e6;
  };
  const words = ['${command}', 'run', '--simulate', '4', '--', 'true'];
  for (let i = 0; i < 3; i++) once(words);
  const over = Array.from({ length: 31 }, () => once(words) - once(['${node}', '-e', '0']));
  console.log(over.sort((a, b) => a - b)[15].toFixed(1));`;

function tryPackage(system, name, file) {
  const { user, install, older, upgrade = install, remove, command, node, python } = PACKAGES[name];
  const inside = (path) => path.slice(system.directory.length);
  const first = older === undefined ? file : older(file);
  const before = system.files();
  const begin = performance.now();
  system.run(install(inside(first)), { user });
  const seconds = (performance.now() - begin) / 1000;
  const simulated = 'export GPU_OWNER_SIMULATE=4;';
  const expectText = (script, pattern) => {
    const said = system.run(`cd; ${simulated} ${script}`);
    if (!pattern.test(said)) throw new Error(`${name}: ${script} said\n${said}`);
  };
  expectText(`${command} --version`, /^\d+\.\d+\.\d+/);
  expectText(`${command} status --simulate 4`, /(free[\s\S]*){4}/);
  expectText(`${command} run -n 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'`, /^GPU-[^,]+,GPU-[^,]+\n$/);
  expectText(`${command} selftest --simulate 2`, / 0 failed/);
  const claim = 'import gpu_owner\nwith gpu_owner.claim(2) as gpus: print(len(gpus))';
  const path = name === 'tarball' ? `PATH=${dirname(command)}:$PATH` : 'PATH=/nonexistent';
  expectText(
    `p=$(command -v ${python.replace(/^\S+=\S+ /, '')}); ${python.startsWith('PYTHONPATH') ? `${python.split(' ')[0]} ` : ''}${path} "$p" -c '${claim}'`,
    /^2\n$/,
  );
  expectText(
    `mkdir sweep && cd sweep && ${command} exp run --gpus 2 --grid a=1,2 -- sh -c 'echo $GPU_OWNER_TASK' && cat results_grid/final_results.csv`,
    /2 completed/,
  );
  if (name === 'wheel') {
    expectText(
      `~/venv/bin/pip install --quiet --no-index --find-links /packages/wheels pytest nvidia-ml-py
      cp -r /packages/ci ~/sweep/ && cd ~/sweep/ci
      PATH=$HOME/venv/bin:$PATH gpu-owner simulate --machine 2 shell -- pytest`,
      / 6 passed /,
    );
  }
  const start = Number(system.run(`cd; ${node} -e "${START(command, node).replaceAll('\n', ' ')}"`));
  // While a job runs: it goes on, and so do claims.
  const asUser = (script) => (user ? script : `su user -c "${script}"`);
  const running = system.run(
    `cd; ${simulated} (setsid ${asUser(`${command} run -n 4 -- sleep 100`)} >/dev/null 2>&1 &)
    until ${asUser(`${command} status`)} | grep -q leased; do sleep 0.1; done
    ${upgrade(inside(file))} >/dev/null; ${asUser(`${command} status`)}`,
    { user },
  );
  if (running.match(/leased$/gm)?.length !== 4) throw new Error(`${name}: after an upgrade\n${running}`);
  expectText(`${command} status`, /free/);
  system.run(remove, { user });
  system.run('rm -rf ~/sweep ~/venv ~/.cache', {});
  const ours = (path) =>
    /gpu.?owner/i.test(path) &&
    !/^\/(?:tmp|var\/tmp|run)\//.test(path) &&
    !/^\/var\/(?:lib\/dpkg|log|cache)\//.test(path);
  const left = [...system.files()].filter((path) => !before.has(path) && ours(path));
  return { seconds, start, left };
}

if (process.getuid() !== 0)
  throw new Error('test:systems needs root: it makes file systems and unshares namespaces');
let failed = 0;
const wheels = join(cache, 'wheels');
downloadWheels(wheels);
console.log('SYSTEM    PACKAGE   SIZE (MB)  INSTALL (s)  START OVER NODE (ms)  LEFT');
for (const suite of suites) {
  const system = prepare(suite);
  try {
    cpSync(wheels, join(system.directory, 'packages/wheels'), { recursive: true });
    cpSync(join(root, 'examples/ci'), join(system.directory, 'packages/ci'), { recursive: true });
    for (const [name, { pattern }] of Object.entries(PACKAGES)) {
      const found = readdirSync(release).find((each) => pattern.test(each));
      if (found === undefined) throw new Error(`${release} has no ${name}: npm run package`);
      const file = join(system.directory, 'packages', found);
      cpSync(join(release, found), file);
      try {
        const { seconds, start, left } = tryPackage(system, name, file);
        const size = (statSync(join(release, found)).size / 1e6).toFixed(1);
        console.log(
          [
            suite.padEnd(9),
            name.padEnd(9),
            size.padStart(9),
            seconds.toFixed(1).padStart(12),
            start.toFixed(1).padStart(21),
            ` ${left.join(' ') || 'nothing'}`,
          ].join(' '),
        );
        // Beside other work a start takes as long as that lets it.
        if (left.length > 0 || (start > MAX_START_MS && loadavg()[0] < 1.5)) failed++;
      } catch (error) {
        failed++;
        console.log(`${suite.padEnd(9)} ${name}: ${error.message}`);
      }
    }
  } finally {
    rmSync(system.directory, { recursive: true, force: true });
  }
}
console.log(`${suites.length * Object.keys(PACKAGES).length - failed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;
