// The files of a Debian package besides lib/gpu-owner and documents: its control files, and what administrators expect of a
// package: manual pages, completion for three shells, the lock directory, a configuration file, units for users (disabled).
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { gzipSync } from 'node:zlib';

const root = dirname(import.meta.dirname);
const command = join(root, 'bin/gpu-owner.cjs');

/** Depends on what Node.js needs beyond what every system has: nothing. libc6 of Debian 10, Ubuntu 18.10. */
const CONTROL = ({ version, arch, size }) => `Package: gpu-owner
Version: ${version}
Architecture: ${arch}
Maintainer: gpu-owner maintainers <maintainers@gpu-owner.invalid>
Installed-Size: ${size}
Depends: libc6 (>= 2.28), libgcc-s1 | libgcc1, libstdc++6 (>= 8)
Suggests: python3
Section: utils
Priority: optional
Description: exclusive use of N NVIDIA GPUs on a shared machine
 Gives a process exclusive use of GPUs, without a daemon: claims are decided under
 kernel locks, wait in one queue, and end with the last process of a job. Runs sweeps
 of experiments with a worker on every GPU. Brings its own Node.js.
`;

/**
 * /run is empty after each boot; where there is no systemd, the first claim makes /var/tmp/gpu-owner. After an upgrade, services that
 * run go on with its files.
 */
const postinst = (services) => `#!/bin/sh
set -e
if [ "$1" = configure ]; then
  install -d -m 755 /var/lib/gpu-owner
  install -d -m 1777 /var/lib/gpu-owner/usage
  if [ -d /run/systemd/system ]; then
    systemd-tmpfiles --create gpu-owner.conf || true
    systemctl daemon-reload || true
    [ -z "$2" ] || systemctl try-restart ${services.join(' ')} || true
  fi
fi
`;

/** Running jobs need the files that they have open only. The lock directory stays, as locks may be held in it. */
const POSTRM = `#!/bin/sh
set -e
if [ "$1" = purge ]; then
  rmdir --ignore-fail-on-non-empty /etc/gpu-owner 2>/dev/null || true
  rm -rf /var/lib/gpu-owner/usage
  rmdir --ignore-fail-on-non-empty /var/lib/gpu-owner 2>/dev/null || true
fi
`;

/** Stops services of the system, and removes files that the package doesn't list: Python's and V8's compiled forms. */
const prerm = (services) => `#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now --quiet ${services.join(' ')} || true
fi
rm -rf /usr/lib/gpu-owner/python/__pycache__ /usr/lib/gpu-owner/python/*/__pycache__ /usr/lib/gpu-owner/python/*/*/__pycache__
rm -f /usr/lib/gpu-owner/dist/*.cache*
`;

const TMPFILES = `# The lock directory of gpu-owner: everybody may claim, nobody may remove the files of others.
d /run/lock/gpu-owner 1777 root root -
`;

/** @param directory of what is installed, with usr/lib/gpu-owner and documents in it */
export function writeDebian(directory, { version, arch, node }) {
  const place = (path, text, mode = 0o644) => {
    mkdirSync(dirname(join(directory, path)), { recursive: true });
    writeFileSync(join(directory, path), text);
    chmodSync(join(directory, path), mode);
  };
  const link = (path, target) => {
    mkdirSync(dirname(join(directory, path)), { recursive: true });
    symlinkSync(target, join(directory, path));
  };
  link('usr/bin/gpu-owner', '../lib/gpu-owner/bin/gpu-owner.cjs');
  link('usr/lib/python3/dist-packages/gpu_owner', '../../gpu-owner/python/gpu_owner');
  for (const [name, text] of manualPages(version)) {
    place(`usr/share/man/man1/${name}.1.gz`, gzipSync(text, { level: 9 }));
  }
  place('usr/share/bash-completion/completions/gpu-owner', output('completion', 'bash'));
  place('usr/share/zsh/vendor-completions/_gpu-owner', output('completion', 'zsh'));
  place('usr/share/fish/vendor_completions.d/gpu-owner.fish', output('completion', 'fish'));
  place('usr/lib/tmpfiles.d/gpu-owner.conf', TMPFILES);
  place('etc/gpu-owner/config.yaml', readFileSync(join(root, 'examples/config.yaml')));
  const services = [];
  for (const name of readdirSync(join(root, 'examples/systemd')).sort()) {
    const unit = readFileSync(join(root, 'examples/systemd', name), 'utf8')
      .replace(/^Environment=GPU_OWNER_NODE=.*\n/m, '')
      .replaceAll('/usr/local/bin/gpu-owner', '/usr/bin/gpu-owner');
    // Each says in its first lines where it belongs.
    const level = unit.includes(`/etc/systemd/system/${name}`) ? 'system' : 'user';
    place(`usr/lib/systemd/${level}/${name}`, unit);
    if (level === 'system') services.push(name);
  }
  place('usr/share/doc/gpu-owner/copyright', copyright(node));
  const size = Math.ceil(sizeOf(directory) / 1024);
  place('DEBIAN/control', CONTROL({ version, arch, size }));
  place('DEBIAN/conffiles', '/etc/gpu-owner/config.yaml\n');
  place('DEBIAN/postinst', postinst(services), 0o755);
  place('DEBIAN/prerm', prerm(services), 0o755);
  place('DEBIAN/postrm', POSTRM, 0o755);
}

function output(...args) {
  return execFileSync(command, args, { encoding: 'utf8' });
}

/** A page for each command, from its help: [name, text]. */
function manualPages(version) {
  const pages = [];
  const visit = (words) => {
    const help = output(...words, '--help', '--all');
    // The help of `simulate` is the simulator's own, whatever follows.
    if (!help.startsWith(`Usage: ${['gpu-owner', ...words].join(' ')} `)) return;
    pages.push([['gpu-owner', ...words].join('-'), manualPage(words, help, version)]);
    const listed = /^Commands:\n((?: {2}.*\n?)*)/m.exec(help)?.[1] ?? '';
    for (const [, name] of listed.matchAll(/^ {2}([a-z][\w-]*) /gm)) visit([...words, name]);
  };
  visit([]);
  return pages;
}

function manualPage(words, help, version) {
  const name = ['gpu-owner', ...words].join('-');
  const [usage, , ...rest] = help.trimEnd().split('\n');
  const about = rest.slice(0, rest.indexOf('')).join(' ');
  const purpose = about.split(/(?<=\.) /)[0].replace(/\.$/, '');
  const literal = (lines) =>
    lines.map((line) =>
      line
        .replaceAll('\\', '\\e')
        .replace(/^([.'])/, '\\&$1')
        .replaceAll('-', '\\-'),
    );
  return [
    `.TH ${name.toUpperCase().replaceAll('-', '\\-')} 1 "" "gpu\\-owner ${version}" "gpu\\-owner"`,
    '.SH NAME',
    `${name.replaceAll('-', '\\-')} \\- ${literal([purpose])}`,
    '.SH SYNOPSIS',
    ...literal([usage.replace(/^Usage: /, '')]),
    '.SH DESCRIPTION',
    '.nf',
    ...literal(rest),
    '.fi',
    '.SH SEE ALSO',
    '/usr/share/doc/gpu\\-owner',
    '',
  ].join('\n');
}

function copyright(node) {
  return `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gpu-owner

Files: *
Copyright: the authors of gpu-owner
License: MIT
${indented(readFileSync(join(root, 'LICENSE'), 'utf8'))}

Files: usr/lib/gpu-owner/bin/node
Copyright: the authors of Node.js ${node}
License: Node.js
 See /usr/lib/gpu-owner/LICENSE.node.

Files: usr/lib/gpu-owner/node_modules/* usr/lib/gpu-owner/dist/experiments.cjs usr/lib/gpu-owner/dist/agents.cjs
 usr/lib/gpu-owner/dist/yaml.cjs usr/lib/gpu-owner/dist/web/page.js
Copyright: the authors of the packages
License: as in the packages
 See the LICENSE files beside them, /usr/lib/gpu-owner/dist/experiments.licenses.txt,
 /usr/lib/gpu-owner/dist/agents.licenses.txt, /usr/lib/gpu-owner/dist/yaml.licenses.txt and
 /usr/lib/gpu-owner/dist/web/licenses.txt.
`;
}

function indented(text) {
  return text.trimEnd().replace(/^/gm, ' ').replace(/^ $/gm, ' .');
}

function sizeOf(path) {
  return readdirSync(path, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, entry) => sum + statSync(join(entry.parentPath ?? entry.path, entry.name)).size, 0);
}
