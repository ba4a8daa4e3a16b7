// Lock directories and lock files as misconfiguration, full disks and hostile users make them.
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { because, compile, noCompiler, noMounts } from '../support/doctor.ts';
import {
  command,
  type Finished,
  finished,
  Machine,
  NOBODY,
  output,
  python,
  type Starting,
  until,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';
import { processesWith, signalAll, treeOf } from '../support/processes.ts';
import { quickest } from '../support/time.ts';

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const RUN = ['run', '--placeholder', 'none', '--no-wait', '--', 'echo', 'it ran'];

const noOtherUser = whyNotNobody();

let machine: Machine;
let directory: string;
beforeEach(() => {
  machine = new Machine(2);
  directory = join(machine.directory, 'locks');
});
afterEach(() => machine.close());

const here = (path = directory): Starting => ({ env: { GPU_OWNER_LOCK_DIR: path } });

/** Makes the directory and the lease files of both GPUs. */
async function makeLeaseFiles(): Promise<void> {
  expect(
    await machine.runCommand(['run', '--placeholder', 'none', '-n', '2', '--', 'true'], here()),
  ).toMatchObject({
    code: 0,
    stderr: '',
  });
}

function leaseFile(gpu: number): string {
  return join(directory, `${uuidOf(gpu)}.lease`);
}

function expectRefused({ code, stdout, stderr }: Finished, message: RegExp): void {
  expect({ code, stdout }).toEqual({ code: 73, stdout: '' });
  expect(stderr).toMatch(message);
  expect(stderr).toMatch(/^gpu-owner: (?!.*Error)/);
}

/** A stranger's lock, until the returned function is called. */
async function lock(file: string, ...kind: string[]): Promise<() => Promise<unknown>> {
  const starting = noOtherUser === null ? { uid: NOBODY } : {};
  const child = machine.start([python, fixture('locker.py'), file, ...kind], starting);
  await output(child, /locked/);
  const end = finished(child);
  return () => {
    child.stdin?.end();
    return end;
  };
}

describe('a lock directory', () => {
  test('a lock directory that is a symbolic link is refused, and its target is left alone', async () => {
    mkdirSync(join(machine.directory, 'elsewhere'), { mode: 0o777 });
    symlinkSync(join(machine.directory, 'elsewhere'), directory);
    expectRefused(
      await machine.runCommand(RUN, here()),
      /the lock directory .*\/locks is a symbolic link, which is not followed\. Remove it, or name the directory/,
    );
    expect(readdirSync(join(machine.directory, 'elsewhere'))).toEqual([]);
    const { stdout } = await machine.runCommand(['status', '--json'], here());
    expect(JSON.parse(stdout).map(({ state }: { state: string }) => state)).toEqual([
      'unavailable',
      'unavailable',
    ]);
    expect(JSON.parse(stdout)[0].reason).toMatch(/is a symbolic link/);
  });

  test('a lock directory whose name has a line break, an escape sequence and a space works', async () => {
    const odd = join(machine.directory, 'odd \n\u001b[31m\u202e名');
    const { code, stdout, stderr } = await machine.runCommand(RUN, here(odd));
    expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'it ran\n', stderr: '' });
    expect(statSync(odd).mode & 0o7777).toBe(0o1777);
    rmSync(odd, { recursive: true });
    writeFileSync(odd, '');
    const refused = await machine.runCommand(RUN, here(odd));
    expectRefused(refused, /is not a directory/);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    expect(refused.stderr).not.toMatch(/[\x1b\u202e]/);
  });

  test('is refused on network file systems', async () => {
    if (noCompiler !== null) return console.log(`not tested: ${noCompiler}`);
    const shim = { ...here().env, LD_PRELOAD: compile(machine, fixture('statfs_shim.c')) };
    for (const [type, name] of [
      ['6969', 'NFS'],
      ['bd00bd0', 'Lustre'],
    ] as const) {
      expectRefused(
        await machine.runCommand(RUN, { env: { ...shim, STATFS_TYPE: type } }),
        new RegExp(`is on a network file system \\(${name}\\).*lockDirectory.*GPU_OWNER_LOCK_DIR`),
      );
    }
    const { stdout } = await machine.runScript(
      'try { new GPUOwner(1) } catch ({ code, message }) { console.log(code, message) }',
      { env: { ...shim, STATFS_TYPE: '6969' } },
    );
    expect(stdout).toMatch(/^ERR_LOCK_DIRECTORY .*\(NFS\)/);
  });

  describe.skipIf(noOtherUser !== null)(
    `of another user${noOtherUser === null ? '' : ` (${noOtherUser})`}`,
    () => {
      const asNobody = () => ({ ...here(), uid: NOBODY });

      test('is refused unless all may write to it, naming owner and remedy', async () => {
        await makeLeaseFiles();
        for (const mode of [0o700, 0o1755]) {
          chmodSync(directory, mode);
          const octal = mode.toString(8).padStart(4, '0');
          expectRefused(
            await machine.runCommand(RUN, asNobody()),
            new RegExp(`belongs to root with mode ${octal}.*Ask root or an administrator for \`chmod 1777 `),
          );
        }
        const { stdout } = await machine.runCommand(['status', '--json'], asNobody());
        const [gpu] = JSON.parse(stdout);
        expect(gpu).toMatchObject({ state: 'unavailable', lease: null });
        expect(gpu.reason).toMatch(/belongs to root/);
      });

      test('root uses only a sticky lock directory, and is told that others can not use it', async () => {
        mkdirSync(directory, { mode: 0o700 });
        chownSync(directory, NOBODY, NOBODY);
        for (const mode of [0o700, 0o777]) {
          chmodSync(directory, mode);
          expectRefused(
            await machine.runCommand(RUN, here()),
            /belongs to nobody with mode 0[0-7]{3}: root only uses directories that belong to root or are sticky. chmod 1777/,
          );
        }
        expect(readdirSync(directory)).toEqual([]);
        chmodSync(directory, 0o1700);
        const { code, stderr } = await machine.runCommand(RUN, here());
        expect(code).toBe(0);
        expect(stderr).toMatch(
          /warning: the lock directory .* has mode 1700, so other users can't claim. To let them: chmod 1777/,
        );
      });

      test('is refused in a place where this user may not make one, or may not even look', async () => {
        expectRefused(await machine.runCommand(RUN, asNobody()), /can't be made: permission denied/);
        mkdirSync(join(machine.directory, 'closed'), { mode: 0o700 });
        const closed = { env: { GPU_OWNER_LOCK_DIR: join(machine.directory, 'closed/locks') }, uid: NOBODY };
        expectRefused(await machine.runCommand(RUN, closed), /can't be used: permission denied/);
        expect((await machine.runCommand(['status'], closed)).code).toBe(0);
      });

      test('that one user has made serves the other, whatever the umask', async () => {
        mkdirSync(join(machine.directory, 'shared'), { mode: 0o777 });
        chmodSync(join(machine.directory, 'shared'), 0o777);
        const shared = { env: { GPU_OWNER_LOCK_DIR: join(machine.directory, 'shared/locks') } };
        for (const starting of [
          { ...shared, uid: NOBODY, umask: '077' },
          { ...shared, umask: '077' },
        ]) {
          expect(await machine.runCommand(RUN, starting)).toMatchObject({ code: 0, stderr: '' });
        }
      });
    },
  );
});

describe.skipIf(noMounts !== null)(`a file system${because(noMounts)}`, () => {
  /** Runs a shell script in a mount namespace of its own; `claim` in it claims all GPUs and says how that went. */
  async function inNamespace(
    script: string,
    env: Record<string, string | undefined> = {},
  ): Promise<Finished> {
    mkdirSync(join(machine.directory, 'mnt'), { recursive: true });
    const setup = `
      mnt=${machine.directory}/mnt
      g() { ${process.execPath} ${command} "$@" 2>&1; }
      claim() { c=0; g run --placeholder none --no-wait -n "\${1:-2}" -- echo it ran || c=$?; echo "code $c"; }
      set -e\n`;
    return machine.run(['unshare', '-m', '--propagation', 'private', 'sh', '-c', setup + script], {
      env: { GPU_OWNER_LOCK_DIR: join(machine.directory, 'mnt/locks'), ...env },
    });
  }

  test('a read-only file system is an error, with or without a lock directory on it', async () => {
    const { stdout } = await inNamespace(`
      mount -t tmpfs tmpfs $mnt; mount -o remount,ro $mnt; claim
      mount -o remount,rw $mnt; claim 1; mount -o remount,ro $mnt; claim; claim 1; g status`);
    expect(stdout).toMatch(
      /^gpu-owner: the lock directory .* can't be made: read-only file system\. .*\ncode 73\nit ran\ncode 0\n/,
    );
    expect(stdout.split('code 0\n')[1]).toMatch(
      /^(gpu-owner: the lock directory .* can't be used: read-only file system\. .*\ncode 73\n){2}GPU .* unavailable\n.*can't be used/s,
    );
  });

  test('a full file system is an error only while lease files are missing', async () => {
    const { stdout } = await inNamespace(`
      mount -t tmpfs -o size=64k tmpfs $mnt; mkdir -m 1777 $mnt/locks
      fill() { head -c 100000 /dev/zero >$mnt/fill 2>/dev/null || true; }
      fill; claim; ls $mnt/locks | wc -l
      rm $mnt/fill; claim; fill; claim; claim; g status; rm $mnt/locks/${uuidOf(1)}.lease; fill; claim 1; claim`);
    const [first, , third, fourth, fifth, sixth] = stdout.split(/code \d+\n/);
    expect(stdout.match(/code \d+/g)).toEqual(['code 73', 'code 0', 'code 0', 'code 0', 'code 0', 'code 73']);
    expect(first).toMatch(
      /the lock file .*\.lease can't be opened: no space left on device\. An administrator/,
    );
    // Only claims inside have something to miss.
    const warning =
      "gpu-owner: warning: the file job-\\d+ can't be made in [^\n]+: no space left on device[^\n]+\n";
    expect(third).toMatch(new RegExp(`^${warning}it ran\n$`));
    expect(fourth).toMatch(new RegExp(`^${warning}it ran\n$`));
    expect(fifth).toMatch(/GPU {2}NAME.*free.*free.*it ran\n$/s);
    expect(sixth).toMatch(new RegExp(`${uuidOf(1)}\\.lease can't be opened: no space left on device`));
  });

  test('a holder keeps its GPU while the file system fills up, and others see who it is', async () => {
    const { stdout } = await inNamespace(`
      mount -t tmpfs -o size=64k tmpfs $mnt; claim >/dev/null
      mkfifo $mnt/../end; g hold -n 1 <$mnt/../end >$mnt/../out & exec 9>$mnt/../end
      until [ -s $mnt/../out ]; do sleep 0.05; done
      head -c 100000 /dev/zero >$mnt/fill 2>/dev/null || true
      claim 1; claim 2; exec 9>&-; wait; claim 2`);
    expect(stdout.match(/code \d+/g)).toEqual(['code 0', 'code 75', 'code 0']);
    expect(stdout).toMatch(/GPU 0: leased by root since .* \(pid \d+: .*hold -n 1\)/);
  });

  describe.skipIf(noCompiler !== null)(`holds the standard places${because(noCompiler)}`, () => {
    /** As on a real machine: no simulation that anybody but the driver's library knows of, and no directory named. */
    function standard(script: string): Promise<Finished> {
      return inNamespace(
        `mount -t tmpfs tmpfs /run/lock; mount -t tmpfs -o mode=1777 tmpfs /var/tmp\n${script}`,
        {
          GPU_OWNER_SIMULATE: undefined,
          GPU_OWNER_LOCK_DIR: undefined,
          GPU_OWNER_CONVENTIONS: 'none', // these would be in the real /tmp
          SHIM_SIMULATE: machine.name,
          LD_PRELOAD: compile(machine, fixture('driver_shim.c')),
          GPU_OWNER_NVML_LIBRARY: join(binaries(), 'simulator/libnvidia-ml.so.1'),
          GPU_OWNER_CUDA_LIBRARY: join(binaries(), 'simulator/libcuda.so.1'),
        },
      );
    }
    const HOLD = `
        mkfifo $mnt/end; g hold -n 1 --devices 0 --placeholder none <$mnt/end >$mnt/out & exec 9>$mnt/end
        until [ -s $mnt/out ]; do sleep 0.05; done\n`;

    test('/var/tmp/gpu-owner is made by whoever comes first', async () => {
      const { stdout } = await standard(
        'umask 077; claim; stat -c "%a %U %n" /var/tmp/gpu-owner /var/tmp/gpu-owner/*; ls /run/lock',
      );
      expect(stdout).toMatch(
        /^it ran\ncode 0\n1777 root \/var\/tmp\/gpu-owner\n(666 root .*\.(lease|lock)\n){3}644 root .*\/turn-0\n$/,
      );
    });

    test('/run/lock/gpu-owner is preferred if it is root’s, and ignored if it is anybody’s', async () => {
      const { stdout } = await standard(`
        mkdir -m 1777 /run/lock/gpu-owner; claim; ls /run/lock/gpu-owner | wc -l; ls /var/tmp | wc -l
        rm -r /run/lock/gpu-owner/*; chown ${NOBODY} /run/lock/gpu-owner; claim; ls /run/lock/gpu-owner | wc -l; ls /var/tmp/gpu-owner | wc -l`);
      expect(stdout).toBe('it ran\ncode 0\n4\n0\nit ran\ncode 0\n0\n4\n');
    });

    test('a lease in /var/tmp/gpu-owner counts after /run/lock/gpu-owner was made', async () => {
      const { stdout } = await standard(`${HOLD}
        mkdir -m 1777 /run/lock/gpu-owner; g status; claim 1; claim 2; ls /run/lock/gpu-owner; exec 9>&-; wait; claim 2`);
      expect(stdout).toMatch(
        / 0 {2}Simulated GPU .* leased\n {5}leased by root [\s\S]*\n {2}1 {2}Simulated GPU .* free\n/,
      );
      expect(stdout.match(/code \d+/g)).toEqual(['code 0', 'code 75', 'code 0']);
    });

    test('a private /var/tmp (systemd’s PrivateTmp) and one inside a container are warned about', async () => {
      const { stdout } = await standard(`
        mkdir -p /run/lock/systemd-private-1-a.service-x/tmp; mount --bind /run/lock/systemd-private-1-a.service-x/tmp /var/tmp; claim
        umount /var/tmp; mkdir /run/lock/u /run/lock/w
        mount -t overlay -o lowerdir=/var/tmp,upperdir=/run/lock/u,workdir=/run/lock/w overlay /var/tmp; container=engine claim`);
      const [first, second] = stdout.split('code 0\n');
      expect(first).toMatch(
        /warning: \/var\/tmp\/gpu-owner is private to this service \(PrivateTmp\).*install -d -m 1777 \/run\/lock\/gpu-owner/,
      );
      expect(second).toMatch(
        /warning: \/var\/tmp\/gpu-owner seems to be inside this container.*docker run -v/,
      );
    });

    test('a container’s own directory is warned about once, whatever its storage; one that is mounted is not', async () => {
      // A root of its own, with processes that have numbers of their own or those of the host.
      const claim = `${process.execPath} ${command} run --no-wait -n 2 --placeholder none -- true 2>&1`;
      const program = join(import.meta.dirname, 'fixtures/container.sh');
      const { stdout } = await standard(`sh ${program} $mnt '${claim}'`);
      const [host, standardPlace, preferredPlace, mounted] = stdout.split('code 0\n');
      expect(host).toBe('');
      expect(standardPlace?.match(/seems to be inside this container/g)).toHaveLength(1);
      expect(standardPlace).toMatch(/docker run -v \/var\/tmp\/gpu-owner:\/var\/tmp\/gpu-owner/);
      expect(preferredPlace).toMatch(
        /warning: \/run\/lock\/gpu-owner seems to be inside this container.*docker run -v \/run\/lock\/gpu-owner:/,
      );
      expect(mounted).toBe('');
    });
  });
});

describe('a lease file', () => {
  type Kinds = { how: (file: string) => void; reason: RegExp }[];
  const links: Kinds = [
    {
      how: (file) => {
        writeFileSync(join(machine.directory, 'victim'), 'precious');
        chmodSync(join(machine.directory, 'victim'), 0o666);
        symlinkSync(join(machine.directory, 'victim'), file);
      },
      reason: /is a symbolic link \(it belongs to \w+\): writing to it could change another file\. Remove it/,
    },
    {
      how: (file) => symlinkSync(join(machine.directory, 'nowhere'), file),
      reason: /is a symbolic link/,
    },
    {
      how: (file) => spawnSync('mkfifo', ['-m', '666', file]),
      reason: /is not a regular file .*Remove it/,
    },
    { how: (file) => mkdirSync(file), reason: /is not a regular file .*Remove it/ },
  ];
  const unwritable = [0o600, 0o644].map((mode) => ({
    how: (file: string) => writeFileSync(file, '', { mode }),
    reason: new RegExp(
      `can't be opened \\(it belongs to root\\), mode 0${mode.toString(8)}\\. Ask its owner for \`chmod 0666`,
    ),
  }));

  const damage: [string, Kinds][] = [['a link, a FIFO or a directory', links]];
  if (noOtherUser === null) damage.push(['a file of root with mode 0600 or 0644', unwritable]);

  test.each(damage)('spoils its own GPU, with a reason, and no other, where it is %s', async (_, kinds) => {
    const last = kinds.length;
    await machine.close();
    machine = new Machine(last + 1);
    directory = join(machine.directory, 'locks');
    const as: Starting = kinds === unwritable ? { ...here(), uid: NOBODY } : here();
    const run = (...words: string[]) =>
      machine.runCommand(['run', '--placeholder', 'none', '--no-wait', ...words], as);
    const all = ['run', '--placeholder', 'none', '-n', String(last + 1), '--', 'true'];
    expect((await machine.runCommand(all, here())).code).toBe(0);
    for (const [gpu, { how }] of kinds.entries()) {
      rmSync(leaseFile(gpu));
      how(leaseFile(gpu));
    }
    const status = JSON.parse((await machine.runCommand(['status', '--json'], as)).stdout);
    const states = status.map(({ state, lease }: { state: string; lease: unknown }) => [state, lease]);
    expect(states).toEqual([...kinds.map(() => ['unavailable', null]), ['free', null]]);
    const one = await run('--', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES');
    expect(one).toEqual({ code: 0, signal: null, stdout: `${uuidOf(last)}\n`, stderr: '' });
    for (const [gpu, { reason }] of kinds.entries()) {
      expect(status[gpu].reason).toMatch(reason);
      expect(status[gpu].reason).toContain(leaseFile(gpu));
    }
    const refused = await run('--devices', '0', '--', 'echo', 'it ran');
    expectRefused(refused, kinds[0]?.reason as RegExp);
    expect(refused.stderr).toContain(leaseFile(0));
    if (kinds === unwritable) return;
    expect(readFileSync(join(machine.directory, 'victim'), 'utf8')).toBe('precious');
    expect(existsSync(join(machine.directory, 'nowhere'))).toBe(false);
    // Nor does it keep those from waiting who can do with another.
    const end = await lock(leaseFile(last), 'ofd', '0', '2');
    const waiting = machine.startCommand(['run', '--placeholder', 'none', '--', 'echo', 'it ran'], as);
    const outcome = finished(waiting);
    await output(waiting, /waiting for (?:a|\d+) GPU/);
    await end();
    const { code, stdout } = await outcome;
    expect({ code, stdout }).toEqual({ code: 0, stdout: 'it ran\n' });
  });

  test('the holder reports a lock directory that is removed or replaced, and its GPU still shows as taken', async () => {
    await makeLeaseFiles();
    const holder = machine.start(
      [
        process.execPath,
        '--input-type=module',
        '-e',
        // The look that is due every minute comes at once.
        machine.script(`
          const { setInterval } = globalThis;
          globalThis.setInterval = (callback) => setInterval(callback, 50);
          const owner = new GPUOwner(1); console.log('claimed'); process.stdin.resume();`),
      ],
      here(),
    );
    const outcome = finished(holder);
    await output(holder, /claimed/);
    const warned = output(
      holder,
      /GPUOwnerWarning: the lease file of GPU-\S+ in \S+ was removed: others see that it is leased, but no longer by whom/,
    );
    rmSync(leaseFile(0));
    await warned;
    const words = ['run', '--no-wait', '-n', '2', '--', 'echo', 'it ran'];
    const env = { ...here().env, GPU_OWNER_CONVENTIONS: 'none' };
    const other = await machine.runCommand(words, { env });
    expect(other.code).toBe(75);
    expect(other.stderr).toMatch(
      new RegExp(`GPU 0: leased by \\w+ \\(pid ${holder.pid}, \\w+\\), but its lease file`),
    );
    holder.stdin?.end();
    expect((await outcome).stderr.match(/lease file of \S+ in \S+ was removed/g)).toHaveLength(1);
    expect(await machine.runCommand(['run', '-n', '2', '--', 'echo', 'it ran'], here())).toMatchObject({
      code: 0,
    });
  });

  const PLAIN = ['--placeholder', 'none'];

  test.skipIf(noOtherUser !== null)(
    `stay exclusive when their maker removes them${because(noOtherUser)}`,
    async () => {
      const [maker, victim, third] = [1, 2, NOBODY];
      const as = (uid: number): Starting => ({
        env: { ...here().env, GPU_OWNER_CONVENTIONS: 'none' },
        uid,
      });
      const claim = (uid: number, how: string[], ...words: string[]) =>
        machine.startCommand(['run', '-n', '2', ...PLAIN, ...how, '--', ...words], as(uid));
      const witnesses = join(machine.directory, 'witnesses');
      for (const [path, mode] of [
        [directory, 0o1777],
        [witnesses, 0o777],
      ] as const) {
        mkdirSync(path);
        chmodSync(path, mode);
      }
      expect((await finished(claim(maker, [], 'true'))).code).toBe(0);
      expect(statSync(leaseFile(1)).uid).toBe(maker);
      for (const share of [[], ['--memory', '25%']]) {
        const witness = join(witnesses, `witness${share.length}`);
        // Fails if another command is inside.
        const inside = `mkdir ${witness} && echo inside; read x; rmdir ${witness}`;
        const holder = claim(victim, share, 'sh', '-c', inside);
        const end = finished(holder);
        await output(holder, /inside/);
        expect(
          await machine.run(['rm', leaseFile(0), leaseFile(1)], as(statSync(leaseFile(0)).uid)),
        ).toMatchObject({ code: 0 });
        const waiter = claim(third, ['--wait'], 'sh', '-c', inside);
        const waited = finished(waiter);
        for (const uid of [maker, 0]) {
          const { code, stderr } = await finished(claim(uid, ['--no-wait'], 'sh', '-c', inside));
          expect(code).toBe(75);
          expect(stderr).toMatch(/GPU 1: leased.*, but its lease file was removed from/);
        }
        const { stdout } = await machine.runCommand(['status', '--json'], as(third));
        expect(JSON.parse(stdout).map(({ state }: { state: string }) => state)).toEqual(['leased', 'leased']);
        // The keeper and all else is killed: the kernel ends the lock of the name as well.
        if (share.length > 0) {
          holder.stdin?.end();
        } else {
          const all = treeOf(holder.pid ?? 0);
          rmSync(witness, { recursive: true });
          signalAll(all, 'SIGKILL');
        }
        await output(waiter, /inside/);
        waiter.stdin?.end();
        expect((await waited).code).toBe(0);
        await end;
      }
    },
  );
});

describe('a record that somebody wrote', () => {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  const HARMFUL = /[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/;
  const ESCAPES = '\u001b[2J\u001b]0;owned\u0007\u009b31m\r\n\u202eevil\u2066\u200b\u0000\t';
  const GENERATION = 7;
  let sentinel: number;
  let signalled: () => string;

  beforeEach(async () => {
    await makeLeaseFiles();
    const child = machine.start([
      python,
      '-c',
      'import signal, sys\nfor n in set(signal.valid_signals()) - {9, 19}: signal.signal(n, lambda n, _: print("signal", n, flush=True))\nprint("ready", flush=True)\nsys.stdin.read()',
    ]);
    let text = '';
    child.stdout?.on('data', (data) => (text += data));
    await until(() => text === 'ready\n');
    sentinel = child.pid as number;
    signalled = () => text.slice('ready\n'.length);
  });

  const RECORDS: Record<string, () => string | Buffer> = {
    'terminal escapes everywhere': () =>
      JSON.stringify({
        user: ESCAPES,
        uid: ESCAPES,
        pid: ESCAPES,
        host: ESCAPES,
        command: ESCAPES,
        since: ESCAPES,
      }),
    'escapes outside of JSON': () => `${ESCAPES}{`,
    'a command of 4 KiB': () =>
      `{"user":"a","command":"${'\u202e\u001b[31m'.repeat(500)}${'m'.repeat(900)}"}`,
    '4 KiB of garbage': () => Buffer.from(Array.from({ length: 4096 }, (_, i) => (i * 7919 + 13) & 0xff)),
    'a block of zeros': () => Buffer.alloc(4096),
    nothing: () => '',
    'huge and impossible numbers': () =>
      '{"user":"a","uid":1e308,"pid":99999999999999999999,"keeper":-1,"survivors":1e99,"ended":-1e308,"generation":1e400,"since":1e300}',
    'negative numbers': () => '{"user":"a","uid":-5,"pid":-1,"survivors":-3}',
    'wrong types': () =>
      '{"user":["a"],"uid":{},"pid":"12","host":{"a":1},"command":[1,2],"since":true,"gpus":"x","survivors":"many","boot":[],"ended":{}}',
    'no object': () => '[1,2,3]',
    null: () => 'null',
    'nesting of 2000': () => '['.repeat(2000) + ']'.repeat(2000),
    ['__proto__']: () =>
      '{"__proto__":{"user":"polluted","state":"free"},"constructor":{"prototype":{"polluted":true}},"toString":"x","convention":"mine"}',
    'another convention and state': () =>
      '{"user":"a","convention":"\\u001b[31m","state":"free","lease":null}',
    'the pid of init': () => '{"user":"root","uid":0,"pid":1,"keeper":1,"survivors":1,"command":"init"}',
    'the pid of a bystander': () =>
      JSON.stringify({
        user: 'root',
        uid: 0,
        pid: sentinel,
        keeper: sentinel,
        placeholder: sentinel,
        survivors: 2,
      }),
    'a time far off': () => '{"user":"a","since":"+275760-09-13T00:00:00.000Z"}',
    'a time before computers': () => '{"user":"a","since":"0001-01-01T00:00:00Z"}',
    'a time to come': () => '{"user":"a","since":"2999-01-01T00:00:00Z"}',
    'the mark of a lease that has ended': () =>
      JSON.stringify({
        user: 'a',
        ended: 0,
        boot: readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim(),
      }),
    'GPUs that are none': () =>
      '{"user":"a","gpus":[null,1,"GPU",[],{"index":{},"uuid":null},{"index":0,"uuid":{}}]}',
    'two records': () => '{"user":"a"}{"user":"b"}',
    'a truncated record': () => '{"user":"alice","command":"train',
  };

  test('is printed harmlessly and never believed, whatever it is', async () => {
    const names = Object.keys(RECORDS);
    // A GPU for each, and one that is free.
    const many = new Machine(names.length + 1);
    onTestFinished(() => many.close());
    const run = ['run', '--placeholder', 'none', '--no-wait', '-n', String(names.length + 1), '--'];
    expect(await many.runCommand([...run, 'true'], here())).toMatchObject({ code: 0, stderr: '' });
    const files = many.uuids().map((uuid) => join(directory, `${uuid}.lease`));
    const contents = names.map((name) => {
      const record = (RECORDS[name] as () => string | Buffer)();
      // With the lock that a record's writer has, too, so that it is believed to be the holder's.
      const isShown = typeof record === 'string' && record.startsWith('{"');
      return isShown ? record.replace('{', `{"generation":${GENERATION},`) : record;
    });
    const write = () => {
      for (const [i, content] of contents.entries()) writeFileSync(files[i] as string, content);
    };
    write();
    const locked = files.slice(0, names.length).join(':');
    const end = await lock(locked, 'ofd', '0', '1', String(1 + GENERATION), '1');

    const { code, stdout, stderr } = await many.runCommand(['status', '--json'], here());
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const gpus = JSON.parse(stdout);
    expect(gpus.map(({ state }: { state: string }) => state)).toEqual([...names.map(() => 'leased'), 'free']);
    for (const [i, name] of names.entries()) {
      const gpu = gpus[i];
      expect(gpu.reason, name).toMatch(/^(leased|locked) by \S/);
      expect(gpu.lease, name).toEqual({
        user: expect.stringMatching(/^.{1,32}$/u),
        uid: expect.toSatisfy((uid) => uid === null || (Number.isInteger(uid) && uid >= 0 && uid < 2 ** 32)),
        pid: expect.toSatisfy((pid) => pid === null || (Number.isInteger(pid) && pid > 0 && pid <= 2 ** 22)),
        host: name === 'terminal escapes everywhere' ? 'evil' : null,
        command: expect.toSatisfy(
          (text) => text === null || (typeof text === 'string' && text.length <= 200),
        ),
        since: expect.toSatisfy((text) => text === null || !Number.isNaN(Date.parse(text))),
        convention: 'gpu-owner',
        ...(gpu.lease.stranger ? { stranger: true } : {}),
        ...(gpu.lease.survivors === undefined ? {} : { survivors: expect.any(Number) }),
      });
      expect(JSON.stringify(gpu), name).not.toMatch(/\\u00(0|1|7f|8|9)|polluted/);
    }
    expect(stdout.replaceAll('\n', '')).not.toMatch(HARMFUL);

    const table = await many.runCommand(['status'], here());
    expect(table.stdout.replaceAll('\n', '')).not.toMatch(HARMFUL);
    for (const line of table.stdout.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
    const metrics = await many.runCommand(['metrics'], here());
    expect({ code: metrics.code, stderr: metrics.stderr }).toEqual({ code: 0, stderr: '' });
    expect(metrics.stdout.replaceAll('\n', '')).not.toMatch(HARMFUL);

    const claim = await many.runCommand([...run, 'echo', 'it ran'], here());
    expect({ code: claim.code, stdout: claim.stdout }).toEqual({ code: 75, stdout: '' });
    for (const [i, name] of names.entries())
      expect(claim.stderr, name).toMatch(new RegExp(`GPU ${i}: (leased|locked) by`));
    expect(claim.stderr.replaceAll('\n', '')).not.toMatch(HARMFUL);

    // Without the lock it means nothing, whatever it says.
    await end();
    write();
    expect(await many.runCommand([...run, 'echo', 'it ran'], here())).toEqual({
      code: 0,
      signal: null,
      stdout: 'it ran\n',
      stderr: '',
    });
    expect(signalled()).toBe('');
  });
});

describe('a stranger who locks', () => {
  beforeEach(makeLeaseFiles);

  test('the whole directory has all GPUs, and is named as what it is', async () => {
    const end = await lock(directory, 'ofd-read', '0', '0');
    const { code, stderr } = await machine.runCommand(RUN, here());
    const named = String.raw`locked by python\S* \(pid \d+, \w+\), which is not a gpu-owner claim: end it with`;
    expect([code, stderr]).toEqual([
      75,
      expect.stringMatching(new RegExp(`GPU 0: ${named}.*GPU 1: ${named}`, 's')),
    ]);
    await end();
    expect((await machine.runCommand(RUN, here())).code).toBe(0);
  });

  test.each(['ofd-read', 'posix'])(
    'the lease’s byte (%s) has the GPU as far as claims are concerned, and no other',
    async (kind) => {
      const end = await lock(leaseFile(0), kind, '0', '1');
      const { stdout } = await machine.runCommand(
        ['run', '--placeholder', 'none', '--', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES'],
        here(),
      );
      expect(stdout).toBe(`${uuidOf(1)}\n`);
      expect((await machine.runCommand(['run', '--no-wait', '-n', '2', '--', 'true'], here())).code).toBe(75);
      const waiting = machine.startCommand(
        ['run', '--placeholder', 'none', '-n', '2', '--', 'echo', 'it ran'],
        here(),
      );
      const outcome = finished(waiting);
      await output(waiting, /waiting for (?:a|\d+) GPU/);
      await end();
      expect(await outcome).toMatchObject({ code: 0, stdout: 'it ran\n' });
    },
  );

  test('all epochs has the GPU as well, and claims say what keeps them from it', async () => {
    const end = await lock(leaseFile(0), 'posix', '1', '0');
    const { code, stderr } = await machine.runCommand(
      ['hold', '--devices', '0', '--placeholder', 'none'],
      here(),
    );
    expect(stderr).toMatch(
      /a program that is not gpu-owner has locked the lease file .*\.lease\. As root, `fuser -v .*` names it/,
    );
    expect(code).toBe(73);
    const { stdout } = await machine.runCommand(
      ['run', '--placeholder', 'none', '--', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES'],
      here(),
    );
    expect(stdout).toBe(`${uuidOf(1)}\n`);
    await end();
  });

  test('the acquisition lock for ever delays each claim by the lock timeout, and no more', async () => {
    const end = await lock(join(directory, 'acquisition.lock'), 'ofd', '0', '0');
    const claim = async () => {
      const begin = performance.now();
      const { code, stdout } = await machine.runCommand(RUN, here());
      expect({ code, stdout }).toEqual({ code: 0, stdout: 'it ran\n' });
      expect(performance.now() - begin).toBeGreaterThan(1_900);
    };
    expect(await quickest(4_000, claim)).toBeLessThan(4_000);
    await end();
  });

  test('up the acquisition lock by making it a link, a directory or a FIFO causes a warning, and claims go on', async () => {
    const file = join(directory, 'acquisition.lock');
    for (const make of [
      () => symlinkSync('/etc/passwd', file),
      () => mkdirSync(file),
      () => spawnSync('mkfifo', [file]),
    ]) {
      rmSync(file, { recursive: true });
      make();
      const { code, stdout, stderr } = await machine.runCommand(RUN, here());
      expect({ code, stdout }).toEqual({ code: 0, stdout: 'it ran\n' });
      expect(stderr).toMatch(
        /^gpu-owner: warning: the lock file .*acquisition\.lock is .*Remove it\. This claim proceeds without it\.\n$/,
      );
    }
  });
});

afterAll(() => {
  expect(processesWith(machine.directory)).toEqual([]);
});
