// Lock directories as misconfiguration, full disks and hostile users make them, and what the doctor says of each.
import { chmodSync, chownSync, mkdirSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { whyPrivate } from '../../lib/check/lock-directory.ts';
import { mountOf, parseMounts } from '../../lib/platform/files.ts';
import { parseLocks } from '../../lib/platform/kernel-locks.ts';
import { binaries } from '../support/binaries.ts';
import {
  because,
  compile,
  type Diagnosis,
  diagnoseLocks,
  diagnosisOf,
  noCompiler,
  noMounts,
  said,
} from '../support/doctor.ts';
import { command, Machine, NOBODY, type Starting, whyNotNobody } from '../support/machine.ts';

const noOtherUser = whyNotNobody();
const integration = (name: string) => join(import.meta.dirname, '../integration/fixtures', name);

const noInit = (() => {
  try {
    statSync('/proc/1/root/');
    return null;
  } catch {
    return 'needs the right to look into process 1';
  }
})();
const PRIVATE = 'lock-directory-private';

let machine: Machine;
let directory: string;
beforeEach(() => {
  machine = new Machine(2);
  directory = join(machine.directory, 'locks');
});
afterEach(() => machine.close());

const here = (more: Record<string, string> = {}): Starting => ({
  env: { GPU_OWNER_LOCK_DIR: directory, ...more },
});

const examine = (starting = here()) => diagnoseLocks(machine, starting);

function makeDirectory(mode = 0o1777): void {
  mkdirSync(directory);
  chmodSync(directory, mode);
}

test.skipIf(noOtherUser !== null)(
  `a lock directory is ok if it is root’s, and if a user can’t remove the files of others${because(noOtherUser)}`,
  async () => {
    makeDirectory();
    const good = await examine();
    expect(good.ids).toEqual([]);
    expect(said(good, 'lock-directory')).toContain(
      `${directory} (named by GPU_OWNER_LOCK_DIR): belongs to root, mode 1777`,
    );
    chmodSync(directory, 0o777);
    const open = await examine();
    expect(open).toMatchObject({ code: 0, ids: ['lock-directory-removable'] });
    expect(said(open, 'lock-directory-removable')).toMatch(
      /belongs to root, mode 0777, so users can remove each other's lock files.* -> As root: `chown root:root \S+; chmod 1777 /,
    );
    chownSync(directory, NOBODY, NOBODY);
    for (const [mode, starting] of [
      [0o1777, here()],
      [0o1777, { ...here(), uid: NOBODY }],
      [0o1700, { ...here(), uid: NOBODY }],
    ] as const) {
      chmodSync(directory, mode);
      const theirs = await examine(starting);
      expect(theirs).toMatchObject({ code: 0, ids: ['lock-directory-removable'] });
      expect(theirs.findings.map(({ id }) => id)).not.toContain('lock-directory');
      expect(said(theirs, 'lock-directory-removable')).toMatch(
        /belongs to nobody, who can remove the lock files of others and claim what they hold, mode .* -> As root: `chown root:root /,
      );
    }
  },
);

test('a lock directory that the configuration file names is said to be', async () => {
  makeDirectory();
  const file = join(machine.directory, 'config.yaml');
  writeFileSync(file, `lockDirectory: ${directory}\n`);
  const diagnosis = await examine({ env: { GPU_OWNER_SIMULATE: undefined, GPU_OWNER_MACHINE_CONFIG: file } });
  expect(diagnosis.findings.map(({ text }) => text).join()).toContain(
    `${directory} (named by the machine's configuration file)`,
  );
});

describe('a directory that claims refuse is a problem, in the words of a claim', () => {
  test.each<[string, () => void, RegExp]>([
    ['a symbolic link', () => symlinkSync('/tmp', directory), /is a symbolic link.* -> Remove it/],
    [
      'in a place that is missing',
      () => {
        directory = join(directory, 'a/b');
      },
      /can't be made: no such file or directory\. -> An administrator can set another one/,
    ],
    [
      'relative',
      () => {
        directory = 'locks';
      },
      /'locks' is not an absolute path/,
    ],
  ])('%s', async (_, make, words) => {
    make();
    const diagnosis = await examine();
    expect(diagnosis).toMatchObject({ code: 1, ids: ['ERR_LOCK_DIRECTORY'] });
    expect(said(diagnosis, 'ERR_LOCK_DIRECTORY')).toMatch(words);
  });

  test.skipIf(noOtherUser !== null)(`of another user, who keeps it${because(noOtherUser)}`, async () => {
    makeDirectory(0o755);
    const diagnosis = await examine({ ...here(), uid: NOBODY });
    expect(diagnosis).toMatchObject({ code: 1, ids: ['ERR_LOCK_DIRECTORY'] });
    expect(said(diagnosis, 'ERR_LOCK_DIRECTORY')).toMatch(/belongs to root with mode 0755.*chmod 1777/);
    directory = join(directory, 'below');
    expect(said(await examine({ ...here(), uid: NOBODY }), 'ERR_LOCK_DIRECTORY')).toMatch(
      /below can't be made: permission denied/,
    );
  });
});

describe.skipIf(noCompiler !== null)(`of the kernel’s locks${because(noCompiler)}`, () => {
  const sick = join(import.meta.dirname, 'fixtures/sick_shim.c');

  test.each([
    ['NO_LOCKS', /the kernel refuses them/],
    ['DEAF_LOCKS', /the same lock is granted twice/],
  ])('those that do not work are a problem (%s)', async (variable, words) => {
    makeDirectory();
    const diagnosis = await examine(here({ LD_PRELOAD: compile(machine, sick), [variable]: '1' }));
    expect(diagnosis).toMatchObject({ code: 1, ids: ['locks-broken'] });
    expect(said(diagnosis, 'locks-broken')).toMatch(words);
  });
});

describe.skipIf(noMounts !== null || noCompiler !== null)(
  `file systems of their own${because(noMounts, noCompiler)}`,
  () => {
    /** Runs a shell script in which `doctor` is the command; the finding that each must have is looked for in its output. */
    async function inNamespace(
      script: string,
      env: Record<string, string | undefined> = {},
    ): Promise<Diagnosis> {
      mkdirSync(join(machine.directory, 'mnt'), { recursive: true });
      const setup = `
      mnt=${machine.directory}/mnt
      doctor() { ${process.execPath} ${command} check-part doctor --only=lock-directory; }
      set -e\n`;
      const { code, stdout, stderr } = await machine.run(
        ['unshare', '-m', '--propagation', 'private', 'sh', '-c', setup + script],
        { env: { GPU_OWNER_LOCK_DIR: join(machine.directory, 'mnt/locks'), ...env } },
      );
      const diagnosis = diagnosisOf(code, stdout, stderr);
      // All that is mounted in there is private to it, of course; one test below is about that.
      const ids = diagnosis.ids.filter((id) => id !== PRIVATE);
      return { ...diagnosis, ids };
    }

    /** As on a real machine: no simulation that anybody but the driver's library knows of, no directory named, and no ledger. */
    function standard(script: string, env: Record<string, string | undefined> = {}): Promise<Diagnosis> {
      return inNamespace(
        `mount -t tmpfs -o size=8m tmpfs /run/lock; mount -t tmpfs -o mode=1777,size=8m tmpfs /var/tmp
        [ ! -d /var/lib/gpu-owner ] || mount -t tmpfs -o size=8m tmpfs /var/lib/gpu-owner\n${script}`,
        {
          GPU_OWNER_SIMULATE: undefined,
          GPU_OWNER_LOCK_DIR: undefined,
          GPU_OWNER_CONVENTIONS_ROOT: join(machine.directory, 'others'), // not the real /tmp
          SHIM_SIMULATE: machine.name,
          LD_PRELOAD: compile(machine, integration('driver_shim.c')),
          GPU_OWNER_NVML_LIBRARY: join(binaries(), 'simulator/libnvidia-ml.so.1'),
          GPU_OWNER_CUDA_LIBRARY: join(binaries(), 'simulator/libcuda.so.1'),
          ...env,
        },
      );
    }

    test.skipIf(noInit !== null)(`a standard place that is private is found${because(noInit)}`, async () => {
      const diagnosis = await standard('mkdir -m 1777 /var/tmp/gpu-owner; doctor');
      expect(diagnosis.code).toBe(1);
      expect(said(diagnosis, PRIVATE)).toMatch(/another directory for this process/);
    });

    test('the standard place is found', async () => {
      const diagnosis = await standard('mkdir -m 1777 /var/tmp/gpu-owner; doctor');
      expect(diagnosis.ids).toEqual([]);
      expect(said(diagnosis, 'lock-directory')).toContain(
        '/var/tmp/gpu-owner (the default; there is no /run/lock',
      );
    });

    test('systemd’s PrivateTmp is found', async () => {
      const diagnosis = await standard(`
        mkdir -p $mnt/systemd-private-1-x.service/tmp/gpu-owner; chmod 1777 $mnt/systemd-private-1-x.service/tmp/gpu-owner
        mount --bind $mnt/systemd-private-1-x.service/tmp /var/tmp; doctor`);
      expect(diagnosis).toMatchObject({ code: 1, ids: [] });
      expect(said(diagnosis, PRIVATE)).toMatch(/private to this service \(PrivateTmp of systemd\)/);
    });
  },
);

describe('of what the kernel tells', () => {
  test('locks are parsed', () => {
    const text = `1: FLOCK  ADVISORY  READ 21540 fe:00:2279172 0 EOF
1: -> FLOCK  ADVISORY  WRITE 21541 fe:00:2279172 0 EOF
2: OFDLCK ADVISORY  WRITE -1 fe:10:2279173 197 197
3: POSIX  ADVISORY  WRITE 12 00:1a:5 0 0
4: LEASE  ACTIVE    READ  13 00:1a:6 0 EOF\n`;
    expect(parseLocks(text)).toEqual([
      {
        kind: 'FLOCK',
        exclusive: false,
        pid: 21540,
        device: '254:0',
        inode: 2279172,
        start: 0,
        last: Number.POSITIVE_INFINITY,
      },
      { kind: 'OFDLCK', exclusive: true, pid: null, device: '254:16', inode: 2279173, start: 197, last: 197 },
      { kind: 'POSIX', exclusive: true, pid: 12, device: '0:26', inode: 5, start: 0, last: 0 },
    ]);
  });

  test('the innermost mount counts, and of several at one place the last', () => {
    const mounts = parseMounts(`22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:25 / /tmp rw - tmpfs tmpfs rw
31 22 254:0 /tmp/systemd-private-0a1-web.service-x/tmp /tmp rw - ext4 /dev/vda rw,discard
32 22 254:0 /srv/a\\040b /srv/a\\040b rw,nosuid shared:1 - ext4 /dev/vda rw\n`);
    expect(mountOf('/tmp/x', mounts)?.type).toBe('ext4');
    expect(mountOf('/tmpx', mounts)?.point).toBe('/');
    expect(mountOf('/srv/a b/c', mounts)).toMatchObject({
      root: '/srv/a b',
      options: ['rw', 'nosuid', 'rw'],
    });
    expect(mountOf('/tmp', mounts) && whyPrivate(mountOf('/tmp', mounts) as never)).toMatch(/PrivateTmp/);
    expect(mounts[0] && whyPrivate(mounts[0])).toBeNull();
    expect(whyPrivate({ ...(mounts[0] as never as object), root: '/tmp/tmp-inst/alice' } as never)).toMatch(
      /session/,
    );
  });
});
