// Lock directories as misconfiguration, full disks and hostile users make them, and what the doctor says of each.
import {
  chmodSync,
  chownSync,
  linkSync,
  mkdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { whyPrivate } from '../../lib/check/system.ts';
import { mountOf, parseMounts } from '../../lib/platform/files.ts';
import { parseLocks } from '../../lib/platform/kernel-locks.ts';
import { binaries } from '../support/binaries.ts';
import {
  because,
  compile,
  type Diagnosis,
  diagnose,
  diagnoseLocks,
  diagnosisOf,
  noCompiler,
  noMounts,
  said,
} from '../support/doctor.ts';
import {
  command,
  finished,
  Machine,
  NOBODY,
  output,
  processState,
  python,
  type Starting,
  until,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';

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

// Not in a container, as far as it can be told: that is for one test below.
const here = (more: Record<string, string> = {}): Starting => ({
  env: { GPU_OWNER_LOCK_DIR: directory, ...more },
});

async function examine(starting = here(), look = diagnoseLocks): Promise<Diagnosis> {
  const diagnosis = await look(machine, starting);
  return { ...diagnosis, ids: diagnosis.ids.filter((id) => id !== 'lock-directory-in-container') };
}

function makeDirectory(mode = 0o1777): void {
  mkdirSync(directory);
  chmodSync(directory, mode);
}

async function makeLeaseFiles(): Promise<void> {
  makeDirectory();
  const made = await machine.runCommand(['run', '--placeholder', 'none', '-n', '2', '--', 'true'], here());
  expect(made.code).toBe(0);
}

describe('the doctor says that the lock directory is named', () => {
  test('by the variable', async () => {
    makeDirectory();
    const named = await examine();
    expect(said(named, 'lock-directory')).toContain(
      `${directory} (named by GPU_OWNER_LOCK_DIR): belongs to `,
    );
    expect(named.ids).toEqual([]);
  });

  test('by the configuration file', async () => {
    makeDirectory();
    const file = join(machine.directory, 'config.yaml');
    writeFileSync(file, `lockDirectory: ${directory}\n`);
    const libraries = {
      GPU_OWNER_NVML_LIBRARY: join(binaries(), 'simulator/libnvidia-ml.so.1'),
      GPU_OWNER_CUDA_LIBRARY: join(binaries(), 'simulator/libcuda.so.1'),
    };
    const { findings } = await diagnose(machine, {
      env: { ...libraries, GPU_OWNER_SIMULATE: undefined, GPU_OWNER_MACHINE_CONFIG: file },
    });
    expect(findings.find(({ id }) => id === 'lock-directory')?.text).toContain(
      `${directory} (named by the machine's configuration file)`,
    );
  });
});

describe('a directory that claims refuse is a problem', () => {
  test.each<[string, () => void, RegExp]>([
    ['a symbolic link', () => symlinkSync('/tmp', directory), /is a symbolic link.* -> Remove it/],
    ['a file', () => writeFileSync(directory, ''), /is not a directory\. -> Remove what is there/],
    [
      'in a place that is missing',
      () => {
        directory = join(directory, 'a/b');
      },
      /can't be made: .*locks\/a doesn't exist\. -> As root: `install -d/,
    ],
    [
      'in a place that is a file',
      () => {
        writeFileSync(directory, '');
        directory = join(directory, 'a');
      },
      /can't be made: .*not a directory/,
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
    expect(diagnosis).toMatchObject({ code: 1, ids: ['lock-directory-unusable'] });
    expect(said(diagnosis, 'lock-directory-unusable')).toMatch(words);
  });

  test.skipIf(noCompiler !== null)(`on a network file system${because(noCompiler)}`, async () => {
    const env = { LD_PRELOAD: compile(machine, integration('statfs_shim.c')), STATFS_TYPE: '6969' };
    const absent = await examine(here(env));
    expect(said(absent, 'lock-directory-unusable')).toMatch(/network file system \(NFS\)/);
    makeDirectory();
    const diagnosis = await examine(here(env));
    expect(diagnosis).toMatchObject({ code: 1, ids: ['lock-directory-unusable'] });
    expect(said(diagnosis, 'lock-directory-unusable')).toMatch(
      /network file system \(NFS\).* -> An administrator/,
    );
  });

  test.skipIf(noOtherUser !== null)(`of another user, who keeps it${because(noOtherUser)}`, async () => {
    makeDirectory(0o755);
    const diagnosis = await examine({ ...here(), uid: NOBODY });
    expect(diagnosis).toMatchObject({ code: 1, ids: ['lock-directory-unusable'] });
    expect(said(diagnosis, 'lock-directory-unusable')).toMatch(/belongs to root with mode 0755.*chmod 1777/);
    chmodSync(directory, 0o1777);
    expect((await examine({ ...here(), uid: NOBODY })).ids).toEqual([]);
  });
});

describe('a directory that works is told of', () => {
  test('if others may not use it', async () => {
    makeDirectory(0o700);
    const diagnosis = await examine();
    expect(diagnosis.ids).toEqual(['lock-directory-mode']);
    expect(said(diagnosis, 'lock-directory-mode')).toMatch(
      /mode 0700: only \S+ can claim GPUs.*`chmod 1777 /,
    );
  });

  test('if everybody can remove everything in it', async () => {
    makeDirectory(0o777);
    const diagnosis = await examine();
    expect(diagnosis.ids).toEqual(['lock-directory-not-sticky']);
    expect(said(diagnosis, 'lock-directory-not-sticky')).toMatch(/mode 0777.*leased twice/);
  });

  test('a directory inside a container is found, one that is mounted from outside is fine', async () => {
    makeDirectory();
    const inside = await diagnose(machine, here({ container: 'test' }));
    expect(inside.ids).toEqual(['lock-directory-in-container']);
    expect(inside.code).toBe(0);
    expect(said(inside, 'lock-directory-in-container')).toMatch(/docker run -v /);
    if (noMounts !== null) return console.log(`the other half is not tested: ${noMounts}`);
    const { stdout } = await machine.run(
      [
        'unshare',
        '-m',
        'sh',
        '-c',
        `mount --bind ${directory} ${directory}; exec ${process.execPath} ${command} doctor --json`,
      ],
      here({ container: 'test' }),
    );
    // Process 1 sees another mount there, but the same directory.
    expect(diagnosisOf(0, stdout, '').ids).toEqual([]);
  });
});

describe('the doctor finds lock files', () => {
  test.each<[string, (file: string) => void, RegExp]>([
    [
      'that others may not open',
      (file) => chmodSync(file, 0o600),
      /has mode 0600: others can't.*`chmod 0666 /,
    ],
    [
      'that are symbolic links',
      (file) => {
        rmSync(file);
        symlinkSync('/etc/passwd', file);
      },
      /is a symbolic link.* -> Remove it/,
    ],
    [
      'that are directories',
      (file) => {
        rmSync(file);
        mkdirSync(file);
      },
      /is not a regular file/,
    ],
    [
      'that are private and have a second name',
      (file) => {
        chmodSync(file, 0o600);
        linkSync(file, `${file}.other`);
      },
      /has 2 names and mode 0600.* `find .* -xdev -samefile .*\. If it is a lock file, `chmod 0666 .* If not, remove it: `rm /,
    ],
  ])('%s', async (_, damage, words) => {
    await makeLeaseFiles();
    expect((await examine()).ids).toEqual([]);
    damage(join(directory, `${uuidOf(1)}.lease`));
    const diagnosis = await examine();
    expect(diagnosis).toMatchObject({ code: 1, ids: ['lock-file-unusable'] });
    expect(said(diagnosis, 'lock-file-unusable')).toMatch(words);
    expect(said(diagnosis, 'lock-file-unusable')).toContain(`${uuidOf(1)}.lease`);
  });

  test('with a second name', async () => {
    await makeLeaseFiles();
    const lease = join(directory, `${uuidOf(1)}.lease`);
    linkSync(lease, `${machine.directory}/backup`);
    const diagnosis = await examine();
    expect(diagnosis).toMatchObject({ code: 0, ids: ['lock-file-linked'] });
    expect(said(diagnosis, 'lock-file-linked')).toMatch(
      /has 2 names.* -> Leave it .*`find \S+ -xdev -samefile /,
    );
    // A file that may be a user's own.
    writeFileSync(lease, 'precious');
    expect(said(await examine(), 'lock-file-linked')).toMatch(
      /Claims don't write to it.* If not, remove it: `rm /,
    );
  });

  test('that a program has locked without a claim', async () => {
    await makeLeaseFiles();
    const lease = join(directory, `${uuidOf(1)}.lease`);
    const locker = machine.start([python, integration('locker.py'), lease, 'ofd']);
    await output(locker, /locked/);
    const diagnosis = await examine();
    expect(diagnosis).toMatchObject({ code: 1, ids: ['foreign-lock'] });
    expect(said(diagnosis, 'foreign-lock')).toMatch(
      new RegExp(
        `lease is locked by python\\S* \\(pid ${locker.pid}, .*\`kill ${locker.pid}\`\\. \`fuser -v `,
      ),
    );
  });

  test('that were removed under a living holder', async () => {
    makeDirectory();
    const holder = machine.startCommand(['hold', '--devices', '0', '--placeholder', 'none'], here());
    const end = finished(holder);
    await output(holder, /visibleDevices/);
    expect((await examine()).ids).toEqual([]);
    rmSync(join(directory, `${uuidOf(0)}.lease`));
    const diagnosis = await examine();
    expect(diagnosis).toMatchObject({ code: 1, ids: ['lease-file-removed'] });
    expect(said(diagnosis, 'lease-file-removed')).toMatch(
      new RegExp(
        `^The lease file of GPU 0 was removed from ${directory} while \\S+ holds the lease \\(pid ${holder.pid}: .*hold --devices 0`,
      ),
    );
    // Made anew by another claim, it is still so for the first holder.
    const second = machine.startCommand(
      ['hold', '--devices', '0', '--placeholder', 'none', '--conventions', 'none'],
      here(),
    );
    await output(second, /visibleDevices/);
    expect((await examine()).ids).toEqual(['lease-file-removed']);
    second.stdin?.end();
    holder.stdin?.end();
    await end;
    await expect.poll(async () => (await examine()).ids).toEqual([]);
  });

  test('of a claimant that is stopped in the middle', async () => {
    makeDirectory();
    const child = machine.startCommand(['run', '--placeholder', 'none', '--', 'true'], {
      env: { ...here().env, GPU_OWNER_STOP_AT: 'acquisition-lock' },
    });
    const end = finished(child);
    await until(() => processState(child.pid as number) === 'T');
    const diagnosis = await examine();
    expect(diagnosis).toMatchObject({ code: 0, ids: ['claimant-stuck'] });
    expect(said(diagnosis, 'claimant-stuck')).toMatch(
      new RegExp(`\\(pid ${child.pid}, .*kill -CONT ${child.pid}`),
    );
    child.kill('SIGCONT');
    expect((await end).code).toBe(0);
    expect((await examine()).ids).toEqual([]);
  });
});

test('a wait queue of which strangers have locked too much is a problem', async () => {
  makeDirectory();
  const file = join(directory, 'line.lock');
  writeFileSync(file, '');
  chmodSync(file, 0o666);
  const ranges = Array.from({ length: 5_000 }, (_, i) => [String(10_000 - 2 * i), '1']).flat();
  const child = machine.start(
    [python, integration('locker.py'), file, 'ofd', ...ranges],
    noOtherUser === null ? { uid: NOBODY } : {},
  );
  await output(child, /locked/);
  const diagnosis = await examine();
  expect(diagnosis).toMatchObject({ code: 1, ids: ['queue-spoilt'] });
  expect(said(diagnosis, 'queue-spoilt')).toMatch(
    new RegExp(`\\(pid ${child.pid}, \\w+\\) holds 5000 locks there.*kill ${child.pid}`),
  );
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
      g() { ${process.execPath} ${command} "$@"; }
      doctor() { g doctor --part lock-directory; }
      set -e\n`;
      const { code, stdout, stderr } = await machine.run(
        ['unshare', '-m', '--propagation', 'private', 'sh', '-c', setup + script],
        { env: { GPU_OWNER_LOCK_DIR: join(machine.directory, 'mnt/locks'), ...env } },
      );
      const diagnosis = diagnosisOf(code, stdout, stderr);
      // All that is mounted in there is private to it, of course; one test below is about that.
      const ids = diagnosis.ids.filter((id) => !['lock-directory-in-container', PRIVATE].includes(id));
      return { ...diagnosis, ids };
    }

    test('a read-only file system is a problem', async () => {
      const frozen = await inNamespace(
        'mount -t tmpfs tmpfs $mnt; mkdir -m 1777 $mnt/locks; mount -o remount,ro $mnt; doctor',
      );
      expect(frozen).toMatchObject({ code: 1, ids: ['lock-directory-unusable'] });
      expect(said(frozen, 'lock-directory-unusable')).toMatch(/read-only/);
    });

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

    test.each([
      ['of the same name', '/var/tmp/gpu-owner'],
      ['that isn’t here', '/run/lock/gpu-owner'],
    ])(
      'a lease in a directory %s, which another mount namespace has, is not a removed one',
      async (_, here) => {
        const diagnosis = await standard(`
        mkdir -m 1777 ${here}
        unshare -m --propagation private sh -c '
          mount -t tmpfs -o size=8m tmpfs /run/lock
          mount -t tmpfs -o mode=1777,size=8m tmpfs /var/tmp; mkdir -m 1777 /var/tmp/gpu-owner
          exec "$@" run -- sh -c "touch $0; exec sleep 1000"' "$mnt/runs" ${process.execPath} ${command} &
        while [ ! -e $mnt/runs ]; do sleep 0.05; done
        code=0; doctor || code=$?
        kill $!; exit $code`);
        expect(diagnosis.ids).toEqual([]);
      },
    );

    test('systemd’s PrivateTmp is found', async () => {
      const diagnosis = await standard(`
        mkdir -p $mnt/systemd-private-1-x.service/tmp/gpu-owner; chmod 1777 $mnt/systemd-private-1-x.service/tmp/gpu-owner
        mount --bind $mnt/systemd-private-1-x.service/tmp /var/tmp; g doctor --json`);
      expect(diagnosis).toMatchObject({ code: 1, ids: ['private-tmp'] });
      expect(said(diagnosis, PRIVATE)).toMatch(/private to this service \(PrivateTmp of systemd\)/);
      expect(said(diagnosis, 'private-tmp')).toMatch(/^\/var\/tmp is private to this service/);
    });

    test('an administrator’s directory that is not root’s is found', async () => {
      const diagnosis = await standard(
        `mkdir -m 1777 /run/lock/gpu-owner; chown ${NOBODY} /run/lock/gpu-owner; doctor`,
      );
      expect(diagnosis).toMatchObject({ code: 0, ids: ['lock-directory-passed-over'] });
      const own = await standard('mkdir -m 1777 /run/lock/gpu-owner; doctor');
      expect(own.ids).toEqual([]);
      expect(said(own, 'lock-directory')).toContain("/run/lock/gpu-owner (the administrator's)");
    });
  },
);

test.skipIf(noOtherUser !== null)(
  `a directory of another user is found by root${because(noOtherUser)}`,
  async () => {
    makeDirectory(0o700);
    chownSync(directory, NOBODY, NOBODY);
    const { ids } = await examine();
    expect(ids).toEqual(['lock-directory-unusable']); // by root
    chmodSync(directory, 0o1700);
    expect((await examine()).ids).toEqual(['lock-directory-mode']);
    expect(statSync(directory).mode & 0o7777).toBe(0o1700);
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
