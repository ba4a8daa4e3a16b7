// File systems in user space, mounted by the real programs: one number stands for local and for remote ones.
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { command, Machine } from '../support/machine.ts';

const SFTP_SERVER = '/usr/lib/openssh/sftp-server';

const whyNot = ((): string | null => {
  if (process.getuid?.() !== 0) return 'needs root, to mount';
  if (!existsSync('/dev/fuse')) return 'needs /dev/fuse';
  const absent = ['sshfs', 'fuse-overlayfs'].filter((name) => spawnSync(name, ['--version']).status !== 0);
  if (!existsSync(SFTP_SERVER)) absent.push(SFTP_SERVER);
  return absent.length > 0 ? `needs ${absent.join(', ')}` : null;
})();

describe.skipIf(whyNot !== null)(`file systems in user space${whyNot === null ? '' : ` (${whyNot})`}`, () => {
  let machine: Machine;
  /** The directory that sshfs serves, by a child and without a network between. */
  let shown: string;
  let overNetwork: string;

  beforeEach(() => {
    machine = new Machine(2);
    shown = join(machine.directory, 'shown');
    overNetwork = join(machine.directory, 'over-network');
    mkdirSync(shown);
    mkdirSync(overNetwork);
    const server = join(machine.directory, 'sftp');
    writeFileSync(server, `#!/bin/sh\nexec ${SFTP_SERVER}\n`, { mode: 0o755 });
    execFileSync('sshfs', ['-o', `ssh_command=${server}`, `host:${shown}`, overNetwork]);
  });

  afterEach(async () => {
    spawnSync('umount', ['--lazy', overNetwork]);
    await machine.close();
  });

  /** Runs the command on a host of another name. */
  const onHost = (host: string, args: string[], cwd: string) =>
    machine.run(
      [
        ...['unshare', '--uts', 'sh', '-c', `hostname ${host} && exec "$@"`, 'sh'],
        ...[process.execPath, command, ...args],
      ],
      { cwd },
    );

  test('a lock directory over sshfs is refused', async () => {
    const env = { GPU_OWNER_LOCK_DIR: overNetwork };
    const { code, stdout, stderr } = await machine.runCommand(['run', '--', 'echo', 'ran'], { env });
    expect({ code, stdout }).toEqual({ code: 73, stdout: '' });
    expect(stderr).toMatch(/over-network is on a network file system \(fuse\.sshfs\), whose locks/);
  });

  test('a project over sshfs has its queue on one host, and on the other host an error recommends Redis', async () => {
    const sweep = ['--gpus', 'all', '--grid', 'x=1,2', '--', 'true'];
    const first = await onHost('alpha', ['exp', 'run', ...sweep], overNetwork);
    expect(first, first.stderr).toMatchObject({ code: 0 });
    const pointer = join(shown, '.gpu-owner/elsewhere.json');
    expect(JSON.parse(readFileSync(pointer, 'utf8'))).toMatchObject({ host: 'alpha' });
    const second = await onHost('beta', ['exp', 'run', ...sweep], overNetwork);
    expect(second.code).toBe(69);
    expect(second.stderr).toMatch(/its queue on alpha .*\(fuse\.sshfs\) and this is beta.*--queue redis:/);
    const named = ['exp', 'run', '--queue', `sqlite:${join(overNetwork, 'q.db')}`, ...sweep];
    const third = await onHost('beta', named, machine.directory);
    expect(third.stderr).toMatch(/q\.db is on a network file system \(fuse\.sshfs\).*--queue redis:/);
  });

  test('a lock directory on a local file system in user space is used', async () => {
    const [lower, upper, work, merged] = ['lower', 'upper', 'work', 'merged'].map((name) => {
      const path = join(machine.directory, name);
      mkdirSync(path);
      return path;
    }) as [string, string, string, string];
    execFileSync('fuse-overlayfs', [
      '-o',
      `lowerdir=${lower},upperdir=${upper},workdir=${work},allow_other`,
      merged,
    ]);
    try {
      const env = { GPU_OWNER_LOCK_DIR: join(merged, 'locks') };
      const ran = await machine.runCommand(['run', '--', 'echo', 'ran'], { env });
      expect(ran, ran.stderr).toMatchObject({ code: 0, stdout: 'ran\n' });
    } finally {
      spawnSync('umount', ['--lazy', merged]);
    }
  });
});
