// npm run test:first-commands: runs the README's two commands, word for word, in a clone in fresh root file systems of Debian and Ubuntu,
// as an unprivileged user. Needs root, debootstrap, git, and the registries of these systems and of npm; file systems are kept for the
// next time. A system whose own Node.js is too old gets the Node.js that runs this script. A system that can't be had is skipped:
// Ubuntu needs the package ubuntu-archive-keyring (of Debian 13, or a copy of its key file), and a mirror's address in UBUNTU_MIRROR.
//
// Usage: npm run test:first-commands [-- --cache DIR] [--only try|tests] [SUITE...]     default: bookworm trixie noble
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { execFileSync, spawnSync } from 'node:child_process';
import {
  appendFileSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';

const root = dirname(import.meta.dirname);
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { cache: { type: 'string' }, only: { type: 'string' } },
});
const cache = resolve(values.cache ?? '/var/cache/gpu-owner-systems');
const OWN_NODE = ['nodejs', 'npm'];
const INCLUDED = ['ca-certificates', 'git', 'g++', 'make', 'python3'];
const UBUNTU_KEYS = '/usr/share/keyrings/ubuntu-archive-keyring.gpg';
/** How each system differs; `packages`: its own Node.js, where that is new enough. */
const SUITES = {
  bookworm: { packages: [] },
  trixie: { packages: OWN_NODE },
  noble: { packages: [], keyring: UBUNTU_KEYS, mirror: process.env.UBUNTU_MIRROR },
};
const suites = positionals.length > 0 ? positionals : Object.keys(SUITES);
const TIMEOUT_MS = 3_600_000;
const CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt';
const SHOWN_LINES = 300;

const readme = readFileSync(join(root, 'README.md'), 'utf8');
function commandOf(title) {
  const found = new RegExp(`^## ${title}$[^]*?^\`\`\`sh\\n([^]*?)^\`\`\`$`, 'm').exec(readme)?.[1];
  if (found === undefined) throw new Error(`README.md has no command under "${title}"`);
  return found.trim();
}
const commands = Object.entries({ try: 'Try it', tests: 'Run the tests' })
  .filter(([name]) => values.only === undefined || values.only === name)
  .map(([, title]) => commandOf(title));

/** Makes the root file system of a suite, or takes that of the last time. @returns its path */
function bootstrap(suite) {
  if (SUITES[suite] === undefined) throw new Error(`not one of ${Object.keys(SUITES).join(', ')}`);
  const { packages, keyring, mirror } = SUITES[suite];
  const base = join(cache, `first-${suite}`);
  if (existsSync(join(base, 'complete'))) return base;
  if (keyring !== undefined) {
    if (!existsSync(keyring)) throw new Error(`needs ${keyring}, of the package ubuntu-archive-keyring`);
    if (mirror === undefined) throw new Error('UBUNTU_MIRROR names no mirror of Ubuntu');
  }
  rmSync(base, { recursive: true, force: true });
  mkdirSync(cache, { recursive: true });
  const ubuntu = [`--keyring=${keyring}`, '--components=main,universe'];
  const source = keyring === undefined ? [] : [mirror, '/usr/share/debootstrap/scripts/gutsy'];
  const options = [...(keyring === undefined ? [] : ubuntu), suite, base, ...source];
  const { status, stdout, stderr } = spawnSync('debootstrap', options, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`debootstrap failed: ${(stdout + stderr).trim().split('\n').at(-1)}`);
  // debootstrap itself can't resolve what npm depends on.
  connect(base);
  const install = ['apt-get', 'install', '--yes', '--no-install-recommends', ...INCLUDED, ...packages];
  const installed = spawnSync('chroot', [base, 'env', 'DEBIAN_FRONTEND=noninteractive', ...install], {
    encoding: 'utf8',
  });
  if (installed.status !== 0)
    throw new Error(`apt-get failed: ${installed.stderr.trim().split('\n').at(-1)}`);
  execFileSync('chroot', [base, 'useradd', '--create-home', '--uid', '1000', 'user']);
  writeFileSync(join(base, 'complete'), '');
  return base;
}

/** Copies this machine's servers of names and certificates. */
function connect(directory) {
  copyFileSync('/etc/resolv.conf', join(directory, 'etc/resolv.conf'));
  mkdirSync(join(directory, dirname(CERTIFICATES)), { recursive: true });
  if (existsSync(CERTIFICATES)) copyFileSync(CERTIFICATES, join(directory, CERTIFICATES));
}

/** Copies the user's settings of npm, as of a registry. */
function configureNpm(directory) {
  const settings = join(homedir(), '.npmrc');
  if (!existsSync(settings)) return;
  // The headers of Node.js are where its own installation inside has them.
  const text = readFileSync(settings, 'utf8').replace(/^nodedir\s*=.*$/gm, '');
  appendFileSync(join(directory, 'home/user/.npmrc'), text);
}

/** Installs the Node.js that runs this script, with npm and headers, in /usr/local. */
function installNode(directory) {
  const prefix = dirname(dirname(process.execPath));
  const local = join(directory, 'usr/local');
  for (const path of ['bin/node', 'lib/node_modules/npm', 'include/node'])
    cpSync(join(prefix, path), join(local, path), { recursive: true, dereference: true });
  symlinkSync('../lib/node_modules/npm/bin/npm-cli.js', join(local, 'bin/npm'));
  symlinkSync('../lib/node_modules/npm/bin/npx-cli.js', join(local, 'bin/npx'));
}

/** Runs a command in the clone. @returns its exit status and what it said */
function runInside(directory, command) {
  const inside = `mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot --userspec=1000:1000 "$0" "$@"`;
  const environment = ['HOME=/home/user', 'USER=user', 'LANG=C.UTF-8', 'PATH=/usr/local/bin:/usr/bin:/bin'];
  if (existsSync(CERTIFICATES)) environment.push(`NODE_EXTRA_CA_CERTS=${CERTIFICATES}`);
  const { status, stdout } = spawnSync(
    'unshare',
    [
      ...['--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', inside, directory],
      ...['/usr/bin/env', '-i', ...environment, 'sh', '-c', `exec 2>&1; cd ~/gpu-owner && ${command}`],
    ],
    { encoding: 'utf8', cwd: '/', timeout: TIMEOUT_MS, maxBuffer: 1 << 28 },
  );
  return { status, said: stdout };
}

/** Runs a command in a fresh clone in a fresh copy of a system. */
function tryCommand(suite, base, command) {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-first-'));
  try {
    execFileSync('cp', ['-a', '--reflink=auto', `${base}/.`, directory]);
    connect(directory);
    configureNpm(directory);
    if (SUITES[suite].packages.length === 0) installNode(directory);
    const clone = join(directory, 'home/user/gpu-owner');
    execFileSync('git', ['clone', '--quiet', '--no-hardlinks', root, clone]);
    execFileSync('chown', ['-R', '1000:1000', join(directory, 'home/user')]);
    const started = performance.now();
    const { status, said } = runInside(directory, command);
    return { status, said, seconds: (performance.now() - started) / 1000 };
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

if (process.getuid() !== 0)
  throw new Error('test:first-commands needs root: it makes file systems and unshares namespaces');
const total = { passed: 0, failed: 0, skipped: 0 };
console.log('SYSTEM    SECONDS  RESULT   COMMAND');
for (const suite of suites) {
  let base;
  try {
    base = bootstrap(suite);
  } catch (error) {
    total.skipped++;
    console.log(`${suite.padEnd(9)} skipped: ${error.message}`);
    continue;
  }
  for (const command of commands) {
    const { status, said, seconds } = tryCommand(suite, base, command);
    const result = status === 0 ? 'passed' : 'failed';
    total[result]++;
    console.log([suite.padEnd(9), seconds.toFixed(0).padStart(7), ` ${result.padEnd(8)}`, command].join(' '));
    if (status !== 0)
      console.log(`exit code ${status}\n${said.trim().split('\n').slice(-SHOWN_LINES).join('\n')}`);
  }
}
console.log(`${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
process.exitCode = total.failed > 0 ? 1 : 0;
