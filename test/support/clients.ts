// Programs of others that show GPUs, in fixed versions. They are fetched once and kept in the user's cache.
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';

/** A directory, or the reason why there is none. */
type Fetched = { directory: string; reason: null } | { directory: null; reason: string };

/** Fetches something into a directory of its own: whole, or not there. */
function fetched(name: string, fetch: (directory: string) => void): Fetched {
  const directory = join(
    process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'),
    'gpu-owner-tests',
    `${name}-${process.arch}`,
  );
  if (existsSync(directory)) return { directory, reason: null };
  mkdirSync(dirname(directory), { recursive: true });
  const unfinished = mkdtempSync(`${directory}.`);
  try {
    fetch(unfinished);
    // Another test may have been quicker.
    if (!existsSync(directory)) renameSync(unfinished, directory);
    return { directory, reason: null };
  } catch (error) {
    const { stderr } = error as { stderr?: string };
    const line = String(stderr || error)
      .trim()
      .split('\n')
      .at(-1);
    return { directory: null, reason: `${name} can't be fetched: ${line}` };
  } finally {
    rmSync(unfinished, { recursive: true, force: true });
  }
}

function run(program: string, args: string[], cwd?: string): string {
  return execFileSync(program, args, { encoding: 'utf8', cwd, stdio: 'pipe', timeout: 300_000 });
}

/** Packages of PyPI, for PYTHONPATH. `nvidia-ml-py` is as old as the newest simulated driver. */
export function pythonClients(): Fetched {
  const packages = [
    'nvidia-ml-py==13.580.65',
    'nvitop==1.7.2',
    'gpustat==1.1.1',
    'gputil==1.4.0',
    'nvsmi==0.4.2',
    'xmltodict==1.0.4',
    'setuptools==80.9.0', // GPUtil imports distutils, which newer Pythons lack.
  ];
  const version = spawnSync('python3', ['-c', 'import sys; print(*sys.version_info[:2], sep=".")'], {
    encoding: 'utf8',
  }).stdout?.trim();
  return fetched(`python${version}-${packages.join('-').replaceAll('==', '-')}`, (directory) => {
    const options = ['--quiet', '--disable-pip-version-check', '--retries=1', '--timeout=10'];
    run('python3', ['-m', 'pip', 'install', ...options, '--target', directory, ...packages]);
  });
}

/**
 * nvtop: the one that is installed, or that of this Debian. Debian's package lists are fetched with `contrib`, into the cache:
 * the system stays as it is.
 */
export function nvtop(): Fetched & { program: string } {
  const installed = spawnSync('sh', ['-c', 'command -v nvtop'], { encoding: 'utf8' }).stdout.trim();
  if (installed) return { directory: dirname(installed), reason: null, program: installed };
  const found = fetched('nvtop', (directory) => {
    const script = `set -e
      mkdir -p apt/lists/partial apt/archives/partial apt/sources
      for file in /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list /etc/apt/sources.list; do
        ! [ -s "$file" ] || sed 's/^\\(Components:.* main\\).*/\\1 contrib/; s/^\\(deb .* main\\).*/\\1 contrib/' "$file" \\
          > "apt/sources/$(basename "$file" | sed 's/^sources.list$/system.list/')"
      done
      apt() {
        apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$PWD/apt/sources" -o APT::Sandbox::User= \\
          -o Dir::State::Lists="$PWD/apt/lists" -o Dir::Cache="$PWD/apt" -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 -o Acquire::Retries=0 "$@"
      }
      apt update || true
      apt download nvtop
      dpkg-deb -x nvtop_*.deb .
      rm -r apt`;
    run('sh', ['-c', script], directory);
    run(join(directory, 'usr/bin/nvtop'), ['--version']);
  });
  return { ...found, program: join(found.directory ?? '', 'usr/bin/nvtop') };
}

/** NVIDIA's own nvidia-smi, from Debian's section non-free. The system's package lists stay as they are. */
export function nvidiaSmi550(): Fetched & { program: string } {
  const version = '550.163.01';
  const found =
    process.arch === 'x64'
      ? fetched(`nvidia-smi-${version}`, (directory) => {
          const script = `set -e
            mkdir -p apt/lists/partial apt/archives/partial
            echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie non-free' \
              > apt/sources.list
            apt() {
              apt-get -qq -o Dir::Etc::SourceList="$PWD/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
                -o APT::Sandbox::User= -o Dir::State::Lists="$PWD/apt/lists" -o Dir::Cache="$PWD/apt" \
                -o Acquire::http::Timeout=10 -o Acquire::Retries=0 "$@"
            }
            apt update
            apt download nvidia-smi
            dpkg-deb -x nvidia-smi_${version}*.deb .
            rm -r apt`;
          run('sh', ['-c', script], directory);
          run(join(directory, 'usr/lib/nvidia/current/nvidia-smi'), ['--help']);
        })
      : { directory: null, reason: `no nvidia-smi for ${process.arch}` };
  return {
    ...found,
    program: join(found.directory ?? '', 'usr/lib/nvidia/current/nvidia-smi'),
  } as ReturnType<typeof nvidiaSmi550>;
}
