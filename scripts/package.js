// npm run package: makes what users install, in release/:
//   gpu-owner-VERSION.tgz                              for npm, which installs it without compiling anything
//   gpu-owner-VERSION-linux-ARCH.tar.xz                for any directory, with its own Node.js
//   gpu-owner-VERSION-linux-ARCH.tar.gz                the same, for systems without xz
//   gpu_owner_client-VERSION-py3-none-any.whl          the Python module alone, for the command of another package
//   gpu_owner-VERSION-py3-none-manylinux_2_28_ARCH.whl for pip, pipx and uv, with its own Node.js
//   gpu-owner_VERSION_ARCH.deb                         for apt, with its own Node.js
//   SHA256SUMS
// All have the same binaries, which are compiled first (npm run prebuild), as is dist/. Needs xz, python3 and dpkg-deb.
//
// Usage: npm run package [-- OPTIONS] [npm|tarball|wheel|deb...]     default: all
//   --arch ARCH   x64 or arm64, may be repeated; default: those that npm run prebuild can make here
//   --prebuilt    take what is in prebuilds/, if it was made from these sources
//   --binaries DIR  take what is there, such as build/Release, and dist/ as it is: for tests; with one --arch
//   --quick       compress little, and make a .tar in place of .tar.xz and .tar.gz: for tests
//   --out DIR     default: release/
//   --node DIR    where node-linux-ARCH-VERSION.tgz of npm is, or is downloaded to; default: node_modules/.cache/gpu-owner
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
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
import { arch as machine, tmpdir } from 'node:os';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { writeDebian } from './package-deb.js';
import { COMPANIONS, isUpToDate, TRIPLES } from './prebuild.js';

const root = dirname(import.meta.dirname);
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const { version } = manifest;

/**
 * The Node.js of the packages that bring one: long-term support until April 2028. This version needs glibc 2.28 and no library
 * that a bare system lacks; Node.js 26 needs libatomic, which is on few servers. Sums as npm's registry has them.
 */
const NODE = {
  version: '24.21.0',
  integrity: {
    x64: 'sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==',
    arm64: 'sha512-FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g==',
  },
};
const ARCHES = {
  x64: { wheel: 'x86_64', deb: 'amd64' },
  arm64: { wheel: 'aarch64', deb: 'arm64' },
};
const KINDS = ['npm', 'tarball', 'wheel', 'deb'];
/** Pages and examples, as they lie in the repository, so that their links lead somewhere. */
const DOCUMENTS = ['README.md', 'CHANGELOG.md', 'SECURITY.md', 'LICENSE', 'docs', 'examples'];
const COMMAND_BUNDLES = [
  'gpu-owner.cjs',
  'claim.cjs',
  'command.cjs',
  'experiments.cjs',
  'experiments.licenses.txt',
  'agents.cjs',
  'agents.licenses.txt',
  'yaml.cjs',
  'yaml.licenses.txt',
  'web',
];
/** Files of a dependency that no program reads, except licences, and packages of its own, which are found by themselves. */
const UNUSED =
  /(?<!(^|\/)licen[cs]e)\.(map|[cm]?ts|md|markdown|flow|tsbuildinfo)$|(^|\/)(\.github|test|tests|docs|examples|esm|amd|cjs-browser|es6|global|node_modules)(\/|$)/i;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    arch: { type: 'string', multiple: true },
    prebuilt: { type: 'boolean' },
    binaries: { type: 'string' },
    quick: { type: 'boolean' },
    out: { type: 'string' },
    node: { type: 'string' },
  },
});
const out = resolve(values.out ?? join(root, 'release'));
const downloads = resolve(values.node ?? join(root, 'node_modules/.cache/gpu-owner'));
const kinds = positionals.length > 0 ? positionals : KINDS;
const unknown = kinds.find((kind) => !KINDS.includes(kind));
if (unknown !== undefined) throw new Error(`${unknown}: not one of ${KINDS.join(', ')}`);

const script = (name, ...args) => run(process.execPath, [join(root, 'scripts', name), ...args]);
if (values.binaries === undefined && !values.prebuilt) script('prebuild.js', ...(values.arch ?? []));
const binaries = (arch) => resolve(values.binaries ?? join(root, 'prebuilds', `linux-${arch}`));
const arches = values.arch ?? Object.keys(ARCHES).filter((arch) => existsSync(binaries(arch)));
const missing = arches.find((arch) => !existsSync(binaries(arch)));
if (missing !== undefined || arches.length === 0) {
  throw new Error(`${binaries(missing ?? machine())} is missing`);
}
if (values.binaries === undefined) {
  const stale = arches.find((arch) => !isUpToDate(binaries(arch)));
  if (stale !== undefined) {
    throw new Error(
      `${binaries(stale)} was not made from these sources: run npm run prebuild ${stale}, or remove it`,
    );
  }
  script('build.js');
}

process.umask(0o022); // readable for all, whatever umask the packages are made with
const scratch = mkdtempSync(join(tmpdir(), 'gpu-owner-package-'));
try {
  mkdirSync(out, { recursive: true });
  mkdirSync(downloads, { recursive: true });
  if (kinds.includes('npm')) packNpm();
  if (kinds.includes('wheel')) packClient();
  for (const arch of arches) {
    if (kinds.every((kind) => kind === 'npm')) break;
    const tree = makeTree(arch);
    writeManifest(tree, 'tarball');
    if (kinds.includes('tarball')) packTarball(tree, arch);
    writeManifest(tree, 'wheel');
    if (kinds.includes('wheel')) packWheel(tree, arch);
    writeManifest(tree, 'Debian package');
    if (kinds.includes('deb')) packDebian(tree, arch);
  }
  writeSums();
} finally {
  rmSync(scratch, { recursive: true, force: true });
}

function run(command, args, options = {}) {
  return execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], ...options });
}

function copy(from, to, filter = () => true) {
  mkdirSync(dirname(to), { recursive: true });
  cpSync(from, to, { recursive: true, filter, verbatimSymlinks: true });
}

/** The package, the helpers of sweeps, and what makes the module stand in for others in jobs. */
function copyPython(directory) {
  const helpers = ['search_helper.py', 'hydra_helper.py'];
  for (const name of ['gpu_owner', ...helpers, 'job/sitecustomize.py']) {
    const path = `python/${name}`;
    copy(join(root, path), join(directory, path), (file) => !file.endsWith('__pycache__'));
  }
}

function copyDocuments(directory) {
  for (const path of DOCUMENTS) copy(join(root, path), join(directory, path));
  run('chmod', ['-R', 'u=rwX,go=rX', directory]);
}

/** A package for npm: it has neither install script nor binding.gyp, so nothing is compiled, asked or run. */
function packNpm() {
  const directory = join(scratch, 'npm');
  copy(join(root, 'bin'), join(directory, 'bin'));
  copyPython(directory);
  copyDocuments(directory);
  copy(join(root, 'dist'), join(directory, 'dist'), (file) => !/\.cache(\.\d+)?$/.test(file));
  for (const arch of arches) {
    copyBinaries(arch, join(directory, 'prebuilds', `linux-${arch}`), 'gpu-owner.glibc.node');
  }
  const {
    private: _private,
    scripts: _scripts,
    devDependencies: _development,
    binary: _binary,
    overrides: _overrides,
    allowScripts: _allowed,
    ...rest
  } = manifest;
  // In any version: npm refuses to install what conflicts with a project's own, also where it is optional.
  const peerDependencies = Object.fromEntries(Object.keys(rest.peerDependencies).map((name) => [name, '*']));
  writeFileSync(
    join(directory, 'package.json'),
    `${JSON.stringify({ ...rest, peerDependencies, gypfile: false, distribution: 'npm' }, null, 2)}\n`,
  );
  run('npm', ['pack', '--ignore-scripts', '--silent', '--pack-destination', out], { cwd: directory });
  said(`gpu-owner-${version}.tgz`);
}

/** @param addon what it is called there */
function copyBinaries(arch, directory, addon) {
  const from = binaries(arch);
  for (const name of COMPANIONS) copy(join(from, name), join(directory, name));
  const found = readdirSync(from).find((name) => name.endsWith('.node'));
  if (found === undefined) throw new Error(`${from} has no addon`);
  copy(join(from, found), join(directory, addon));
}

/** lib/gpu-owner of the packages that bring Node.js: the command alone, with all that it needs. */
function makeTree(arch) {
  const tree = join(scratch, arch, 'lib/gpu-owner');
  copy(join(root, 'bin/gpu-owner.cjs'), join(tree, 'bin/gpu-owner.cjs'));
  copyPython(tree);
  // `gpu-owner docs` prints the pages. Their pictures aren't needed, the examples are.
  const pages = readdirSync(join(root, 'docs')).filter((name) => name.endsWith('.md'));
  for (const name of pages) copy(join(root, 'docs', name), join(tree, 'docs', name));
  copy(join(root, 'examples'), join(tree, 'examples'));
  for (const name of COMMAND_BUNDLES) copy(join(root, 'dist', name), join(tree, 'dist', name));
  const { dependencies, peerDependencies } = manifest;
  copyBinaries(arch, join(tree, 'build/Release'), 'gpu_owner.node');
  // Node.js has SQLite itself, and what is beside the addon needs no looking for.
  const {
    '@photostructure/sqlite': _,
    'node-gyp-build': _build,
    ...needed
  } = { ...dependencies, ...peerDependencies };
  for (const path of dependencyClosure(Object.keys(needed))) {
    copy(join(root, path), join(tree, path), (file) => !UNUSED.test(relative(join(root, path), file)));
  }
  const node = unpackNode(arch);
  copy(join(node, 'bin/node'), join(tree, 'bin/node'));
  copy(join(node, 'LICENSE'), join(tree, 'LICENSE.node'));
  copy(join(root, 'LICENSE'), join(tree, 'LICENSE'));
  run(arch === machine() ? 'strip' : `${TRIPLES[arch]}-strip`, ['--strip-all', join(tree, 'bin/node')]);
  writeCaches(tree, arch);
  run('chmod', ['-R', 'u=rwX,go=rX', tree]);
  return tree;
}

/** The directories of packages and of all that they depend on, found in package-lock.json as Node.js finds them. */
function dependencyClosure(names) {
  const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
  const found = new Set();
  const visit = (from, name) => {
    for (let at = from; ; at = at.slice(0, Math.max(0, at.lastIndexOf('node_modules/') - 1))) {
      const path = `${at === '' ? '' : `${at}/`}node_modules/${name}`;
      if (packages[path] !== undefined) {
        if (found.has(path)) return;
        found.add(path);
        for (const each of Object.keys(packages[path].dependencies ?? {})) visit(path, each);
        return;
      }
      if (at === '') throw new Error(`package-lock.json has no ${name} for ${from || 'this package'}`);
    }
  };
  for (const name of names) visit('', name);
  return found;
}

/** Node.js as npm's package has it, which is the one of nodejs.org. */
function unpackNode(arch) {
  const file = join(downloads, `node-linux-${arch}-${NODE.version}.tgz`);
  if (!existsSync(file)) {
    run('npm', ['pack', '--silent', '--pack-destination', downloads, `node-linux-${arch}@${NODE.version}`], {
      cwd: tmpdir(),
    });
  }
  const sum = `sha512-${createHash('sha512').update(readFileSync(file)).digest('base64')}`;
  if (sum !== NODE.integrity[arch])
    throw new Error(`${file} is not Node.js ${NODE.version}: its sum is ${sum}. Remove it.`);
  const directory = join(scratch, `node-${arch}`);
  mkdirSync(directory);
  run('tar', ['xf', file, '-C', directory, 'package/bin/node', 'package/LICENSE']);
  return join(directory, 'package');
}

/** @param distribution what --version calls it */
function writeManifest(tree, distribution) {
  const { name, license } = manifest;
  const text = JSON.stringify({ name, version, license, type: 'module', distribution }, null, 2);
  writeFileSync(join(tree, 'package.json'), `${text}\n`);
}

/**
 * V8's compiled forms, made by the Node.js of the package; they are no more opaque than that is. On a machine of another kind the
 * first start makes them.
 */
function writeCaches(tree, arch) {
  if (arch !== machine()) return;
  copy(join(root, 'scripts/code-cache.js'), join(tree, 'scripts/code-cache.js'));
  const program = `
    import { writeCodeCaches } from ${JSON.stringify(join(tree, 'scripts/code-cache.js'))};
    const problems = await writeCodeCaches('build/Release/gpu_owner.node', ['claim', 'command', 'experiments']);
    if (problems.length > 0) throw new Error(problems.join('\\n'));`;
  run(join(tree, 'bin/node'), ['--input-type=module', '-e', program], { cwd: tree });
  rmSync(join(tree, 'scripts'), { recursive: true });
}

/** bin/gpu-owner beside lib/gpu-owner. */
function packTarball(tree, arch) {
  const name = `gpu-owner-${version}-linux-${arch}`;
  const directory = join(scratch, arch, name);
  copy(tree, join(directory, 'lib/gpu-owner'));
  copyDocuments(directory);
  mkdirSync(join(directory, 'bin'));
  symlinkSync('../lib/gpu-owner/bin/gpu-owner.cjs', join(directory, 'bin/gpu-owner'));
  const args = ['--sort=name', '--owner=0', '--group=0', '--numeric-owner', `--mtime=${modified()}`];
  const programs = values.quick ? { tar: 'cat' } : { 'tar.xz': 'xz -T1 -6', 'tar.gz': 'gzip -n -9' };
  for (const [ending, program] of Object.entries(programs)) {
    const file = join(out, `${name}.${ending}`);
    run('tar', [...args, '-I', program, '-cf', file, name], { cwd: join(scratch, arch) });
    said(basename(file));
  }
  rmSync(directory, { recursive: true });
}

/** The time of the last commit, so that the same sources make the same packages. */
function modified() {
  const { stdout } = spawnSync('git', ['log', '-1', '--format=%cI'], { cwd: root, encoding: 'utf8' });
  return stdout?.trim() || '2020-01-01T00:00:00Z';
}

function packWheel(tree, arch) {
  const script = join(scratch, arch, 'gpu-owner');
  writeFileSync(script, wheelLauncher());
  chmodSync(script, 0o755);
  const tag = `py3-none-manylinux_2_28_${ARCHES[arch].wheel}`;
  const file = run('python3', [
    join(root, 'python/build_wheel.py'),
    tag,
    script,
    tree,
    out,
    values.quick ? '0' : '9',
  ]).trim();
  said(basename(file));
}

/** For environments that only import the module: the command is that of another package. */
function packClient() {
  said(run('python3', [join(root, 'python/build_wheel.py'), out]).trim());
}

/** Wheels hold no links, so the launcher's shell part is there again. The launcher finds the package beside itself. */
function wheelLauncher() {
  const source = readFileSync(join(root, 'bin/gpu-owner.cjs'), 'utf8');
  const end = source.indexOf('\n*/\n');
  const line = '\ngpu_owner_0=$0\n';
  if (end < 0 || !source.includes(line)) throw new Error('bin/gpu-owner.cjs is not as expected here');
  return source
    .slice(0, end + 1)
    .replace("#!/bin/sh\n':' /*\n", '#!/bin/sh\n')
    .replace(
      line,
      '\ngpu_owner_0=$0\n[ ! -L "$0" ] || gpu_owner_0=$(readlink -f "$0")\ncase $gpu_owner_0 in */*) ;; *) gpu_owner_0=./$0 ;; esac\ngpu_owner_0=${gpu_owner_0%/*}/../lib/gpu-owner/bin/gpu-owner.cjs\n',
    );
}

function packDebian(tree, arch) {
  const directory = join(scratch, arch, 'deb');
  copy(tree, join(directory, 'usr/lib/gpu-owner'));
  copyDocuments(join(directory, 'usr/share/doc/gpu-owner'));
  writeDebian(directory, { version, arch: ARCHES[arch].deb, node: NODE.version });
  const file = join(out, `gpu-owner_${version}_${ARCHES[arch].deb}.deb`);
  const epoch = String(Math.floor(Date.parse(modified()) / 1000));
  const compression = values.quick ? ['-Znone'] : ['-Zxz', '-z6'];
  run('dpkg-deb', ['--root-owner-group', ...compression, '--build', directory, file], {
    env: { ...process.env, SOURCE_DATE_EPOCH: epoch },
  });
  rmSync(directory, { recursive: true });
  said(basename(file));
}

function said(name) {
  console.log(
    `${(statSync(join(out, name)).size / 1e6).toFixed(1).padStart(6)} MB  ${relative(process.cwd(), join(out, name))}`,
  );
}

function writeSums() {
  const names = readdirSync(out).filter((name) => /\.(tgz|tar|tar\.[gx]z|whl|deb)$/.test(name));
  const sums = names.sort().map((name) => {
    const sum = createHash('sha256')
      .update(readFileSync(join(out, name)))
      .digest('hex');
    return `${sum}  ${name}\n`;
  });
  writeFileSync(join(out, 'SHA256SUMS'), sums.join(''));
}
