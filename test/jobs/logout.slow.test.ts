// A job in the background outlives the terminal, the connection and the login that it was submitted from.
import { spawnSync } from 'node:child_process';
import { chmodSync, copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { command, finished, launcher, type Machine, output, python, until } from '../support/machine.ts';
import { freePort } from '../support/ports.ts';
import { stat } from '../support/processes.ts';
import { type Jobs, jobTest, type ListedJob } from './background.ts';

const SSHD = '/usr/sbin/sshd';
const hasSsh = process.getuid?.() === 0 && existsSync(SSHD) && spawnSync('ssh', ['-V']).status === 0;

let machine: Machine;
let jobs: Jobs;
jobTest((opened) => {
  ({ machine, jobs } = opened);
});

const file = (name: string) => join(machine.directory, name);
const quoted = (words: readonly string[]) => words.map((word) => `'${word}'`).join(' ');
const submit = (words: readonly string[]) => quoted([process.execPath, command, 'submit', '--', ...words]);

/** One that runs, one that waits for GPUs, and one that follows: each goes on, and ends as it should. */
const THREE = () =>
  [
    submit(['-n2', '--', ...machine.untilFile('go', 3)]).replace("'--' '-n2'", "'-n2'"),
    submit(['sh', '-c', 'exit 4']),
    submit(['sh', '-c', 'exit 5']).replace("'submit'", "'submit' '--after=1'"),
  ].join(' && ');

async function expectToGoOn() {
  await jobs.reach(1, 'running');
  let listed: ListedJob[] = [];
  await until(
    async () => {
      listed = await jobs.list();
      return listed[1]?.position === 1;
    },
    () => `job 2 to be the first that waits: ${JSON.stringify(listed)}`,
  );
  machine.touch('go');
  expect(await jobs.wait(1)).toBe(3);
  expect(await jobs.wait(2)).toBe(4);
  expect(await jobs.wait(3)).toBe(5);
  await until(() => jobs.processes().length === 0);
}

test.each([
  ['when they have started', true],
  ['at once', false],
])('a terminal that is closed hangs up nothing of jobs: %s', async (_, isLate) => {
  const bridge = join(import.meta.dirname, 'fixtures/pty_bridge.py');
  const child = machine.start([python, bridge, 'bash', '-c', `${THREE()}; echo submitted; exec sleep 600`]);
  const outcome = finished(child);
  await output(child, /submitted/);
  if (isLate) await jobs.reach(1, 'running');
  const session = stat(child.pid as number)?.session;
  expect(session).toBeDefined();
  child.stdin?.end(); // the terminal's end: SIGHUP for its session
  await outcome;
  for (const pid of jobs.processes()) expect(stat(pid)?.session ?? 'ended').not.toBe(session);
  await expectToGoOn();
});

test.skipIf(!hasSsh)(
  'the end of an ssh connection is not that of jobs [needs sshd and ssh, and root]',
  async () => {
    const key = file('key');
    for (const path of [key, file('host')])
      spawnSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', path]);
    writeFileSync(file('authorized'), readFileSync(`${key}.pub`), { mode: 0o600 });
    mkdirSync('/run/sshd', { recursive: true });
    const port = await freePort();
    const settings = {
      ListenAddress: `127.0.0.1:${port}`,
      HostKey: file('host'),
      AuthorizedKeysFile: file('authorized'),
      PidFile: file('pid'),
      StrictModes: 'no',
      UsePAM: 'no',
      PermitRootLogin: 'yes',
      PasswordAuthentication: 'no',
    };
    writeFileSync(
      file('sshd'),
      Object.entries(settings)
        .map((each) => each.join(' '))
        .join('\n'),
    );
    const server = machine.start([SSHD, '-D', '-e', '-f', file('sshd')]);
    await output(server, /listening/i);
    const env = Object.entries(machine.env)
      .filter(([name, value]) => value !== undefined && /^(GPU_OWNER|XDG)/.test(name))
      .map(([name, value]) => `${name}=${value}`);
    const client = machine.start([
      ...['ssh', '-tt', '-F', 'none', '-i', key, '-p', String(port)],
      ...['-o', 'StrictHostKeyChecking=no', '-o', `UserKnownHostsFile=${file('known')}`, 'root@127.0.0.1'],
      `env ${quoted(env)} sh -c ${quoted([`${THREE().replaceAll("'", '"')}; echo submitted; exec sleep 600`])}`,
    ]);
    const outcome = finished(client);
    await output(client, /submitted/);
    client.kill('SIGKILL'); // the network is gone, or the laptop is shut
    await outcome;
    server.kill();
    await expectToGoOn();
  },
);

test.each([
  ['ends with the connection', '', false],
  ['goes on by nohup', 'nohup ', true],
])('a command under `run` that sshd has started %s', async (_, before, goesOn) => {
  copyFileSync('/bin/sh', file('sshd'));
  const [shell = '', option = '', loop = ''] = machine.untilFile('go');
  const run = [launcher, 'run', '--', shell, option, `${loop}; : >${file('ended')}`];
  const sshd = machine.start(['setsid', file('sshd'), '-c', `${before}${quoted(run)}; true`], {
    env: { SSH_CONNECTION: '192.0.2.1 50000 192.0.2.2 22' },
  });
  const isFree = async () => (await machine.status()).every(({ state }) => state === 'free');
  await until(async () => !(await isFree()));
  sshd.kill('SIGKILL');
  if (!goesOn) return until(isFree);
  await finished(machine.start(['sleep', '1'])); // for a hangup that would come
  expect(await isFree()).toBe(false);
  machine.touch('go');
  await until(() => existsSync(file('ended')));
});

describe.skipIf(spawnSync('unshare', ['--mount', 'true']).status !== 0)(
  'logind ends processes [needs root]',
  () => {
    /** In a mount namespace in which logind is as told, and `systemd-run` a stand-in that notes its arguments. */
    const inLogin = (linger: boolean, manager: boolean, args: string[]) => {
      const bin = file('bin');
      mkdirSync(bin, { recursive: true });
      writeFileSync(
        join(bin, 'systemd-run'),
        `#!/bin/sh\necho "$@" >>${file('scopes')}\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n`,
      );
      chmodSync(join(bin, 'systemd-run'), 0o755);
      mkdirSync(file('runtime/systemd'), { recursive: true });
      if (manager) writeFileSync(file('runtime/systemd/private'), '');
      const script = `mount -t tmpfs none /run && mkdir -p /run/systemd/system /run/systemd/logind.conf.d
printf '[Login]\\nKillUserProcesses = yes\\nKillExcludeUsers=\\n' >/run/systemd/logind.conf.d/99.conf
mkdir -p /var/lib/systemd && mount -t tmpfs none /var/lib/systemd && mkdir /var/lib/systemd/linger
${linger ? 'touch "/var/lib/systemd/linger/$(id -un)"' : ''}
exec "$@"`;
      return machine.run(
        ['unshare', '--mount', 'sh', '-c', script, 'sh', process.execPath, command, ...args],
        { env: { PATH: `${bin}:${process.env.PATH}`, XDG_RUNTIME_DIR: file('runtime') } },
      );
    };

    test('without linger, submit warns', async () => {
      const { code, stdout, stderr } = await inLogin(false, true, ['submit', 'true']);
      expect({ code, stdout }).toEqual({ code: 0, stdout: '1\n' });
      expect(stderr).toMatch(/KillUserProcesses.*loginctl enable-linger/s);
      expect(await jobs.wait(1)).toBe(0);
      expect(existsSync(file('scopes'))).toBe(false);
    });

    test('with linger, a job runs in a scope of the service manager, is seen and cancelled', async () => {
      expect(await inLogin(true, true, ['submit', '--', ...machine.untilFile('go', 3)])).toMatchObject({
        code: 0,
        stdout: '1\n',
        stderr: '',
      });
      await jobs.reach(1, 'running');
      expect(readFileSync(file('scopes'), 'utf8')).toMatch(
        /^--user --scope --quiet --collect --unit=gpu-owner-job-1-\d+ -- /,
      );
      expect(await inLogin(true, true, ['submit', '--after=1', '--', 'sh', '-c', 'exit 4'])).toMatchObject({
        code: 0,
        stderr: '',
      });
      expect((await jobs.find(2)).state).toBe('waiting');
      machine.touch('go');
      expect(await jobs.wait(2)).toBe(4);
      expect(await jobs.wait(1)).toBe(3);
      expect(await inLogin(true, true, ['submit', '--', 'sleep', '600'])).toMatchObject({
        code: 0,
        stderr: '',
      });
      await jobs.reach(3, 'running');
      expect((await jobs.run(['cancel', '3'])).code).toBe(0);
      await until(() => jobs.processes().length === 0);
      expect(await inLogin(true, true, ['submit', '--no-wait', '--', 'sh', '-c', 'exit 5'])).toMatchObject({
        code: 0,
        stdout: '4\n',
        stderr: '',
      });
      expect(await jobs.wait(4)).toBe(5);
      expect(readFileSync(file('scopes'), 'utf8').match(/--unit=gpu-owner-job-\d+/g)).toEqual(
        [1, 2, 3, 4].map((id) => `--unit=gpu-owner-job-${id}`),
      );
    });

    test('with linger but no service manager, submit warns', async () => {
      const { code, stderr } = await inLogin(true, false, ['submit', 'true']);
      expect(code).toBe(0);
      expect(stderr).toMatch(/service manager can not be reached/);
      expect(await jobs.wait(1)).toBe(0);
    });
  },
);
