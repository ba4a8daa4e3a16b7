// `--hosts`: other machines over a real ssh, each with simulated GPUs of its own.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { finished, output, root, until, uuidOf } from '../support/machine.ts';
import { nameOf, processesWith, sendSignal, wordsOf } from '../support/processes.ts';
import { GPU_OWNER, Hosts, whyNoSSHD } from '../support/sshd.ts';
import { soakTest } from '../support/time.ts';

const reason = whyNoSSHD();
const has = (shell: string) => spawnSync('sh', ['-c', `command -v ${shell}`]).status === 0;
const shells = ['dash', 'bash', 'zsh', 'fish', 'tcsh'].filter(has);
/** A gpu-owner that prints this for everything but its version. */
const standIn = (text: string) => `case $1 in --version) echo 9.9.9;; *) ${text};; esac`;

describe.skipIf(reason !== null)(`--hosts${reason === null ? '' : ` (skipped: ${reason})`}`, () => {
  let hosts: Hosts;
  let silent: Server;
  let env: Record<string, string | undefined>;

  beforeAll(async () => {
    hosts = await Hosts.start();
    hosts.add('a');
    hosts.add('b', { gpus: 3, program: GPU_OWNER });
    silent = createServer(() => {}).listen(0, '127.0.0.1');
    await until(() => silent.listening);
    hosts.addName('down', ['Port 1']);
    hosts.addName('silent', [`Port ${(silent.address() as { port: number }).port}`]);
    env = hosts.env;
  });
  afterAll(async () => {
    silent?.close();
    await hosts?.close();
  });

  const json = async (...args: string[]) => {
    // The last one counts.
    const { code, stdout, stderr } = await hosts.run([
      args[0] as string,
      '--timeout=1m',
      ...args.slice(1),
      '--json',
    ]);
    expect(stderr).toBe('');
    return { code, all: JSON.parse(stdout) };
  };
  /** The processes of ssh that this test's configuration has, and those beside them. */
  const sshProcesses = () => processesWith(`GPU_OWNER_SSH=${env.GPU_OWNER_SSH}`);

  test('status shows each host under its name, without a driver or an addon here', async () => {
    const { code, stdout, stderr } = await hosts.run(['status', '--hosts', 'a,b']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(/^a:\nGPU .*\n {2}0 .* free\n {2}1 .* free\n$/m);
    expect(stdout).toMatch(/^b:\nGPU .*\n {2}0 .* free\n {2}1 .* free\n {2}2 .* free\n$/m);
  });

  test('status --json has version and GPUs of each host, in the order of the list', async () => {
    const { code, all } = await json('status', '--hosts', 'b, a', '--min-free-memory', '4GiB');
    expect(code).toBe(0);
    expect(Object.keys(all)).toEqual(['b', 'a']);
    const { version } = JSON.parse(
      spawnSync('cat', [join(root, 'package.json')], { encoding: 'utf8' }).stdout,
    );
    expect(all.b).toMatchObject({ version, gpus: [{ index: 0 }, { index: 1 }, { index: 2 }] });
    expect(all.a.gpus[1]).toMatchObject({ uuid: uuidOf(1), state: 'free', lease: null });
  });

  test('options reach the hosts', async () => {
    const { all } = await json('find', '--hosts', 'a,b', '-n', '1', '--devices', '2');
    expect(all.b.gpus).toMatchObject([{ index: 2 }]);
    expect(all.a.error).toMatchObject({ code: 'ERR_INVALID_ARGUMENT' });
  });

  test('find says which hosts have free GPUs, and exits with 75 if none has', async () => {
    const some = await hosts.run(['find', '--hosts', 'a,b', '-n', '3']);
    expect(some).toMatchObject({ code: 0, stdout: `b: ${[0, 1, 2].map(uuidOf).join(',')}\n` });
    const busy = hosts.add('busy', { gpus: 1 });
    const holder = busy.startCommand(['hold']);
    await output(holder, /visibleDevices/);
    const { code, all } = await json('find', '--hosts', 'busy,down');
    expect(code).toBe(75);
    expect(all.busy.error).toMatchObject({
      code: 'ERR_GPU_UNAVAILABLE',
      message: expect.stringMatching(/leased by/),
    });
    holder.stdin?.end();
    await finished(holder, 'exit');
  });

  test('queue and jobs show those of the hosts', async () => {
    const machine = hosts.add('queued', { gpus: 1 });
    const holder = machine.startCommand(['hold']);
    await output(holder, /visibleDevices/);
    const submitted = await machine.runCommand(['submit', '--name', 'train', '--', 'true']);
    expect(submitted.stdout).toBe('1\n');
    await until(async () => (await machine.runCommand(['queue', '--json'])).stdout.includes('position'));
    const queue = await json('queue', '--hosts', 'queued,a');
    expect(queue.all.queued.queue).toMatchObject([{ position: 1, count: 1 }]);
    expect(queue.all.a.queue).toEqual([]);
    const jobs = await json('jobs', '--hosts', 'queued');
    expect(jobs.all.queued.jobs).toMatchObject([
      { id: 1, name: 'train', state: 'waiting', position: 1 },
      { id: null },
    ]);
    expect((await hosts.run(['queue', '--hosts', 'queued'])).stdout).toMatch(
      /^queued:\n {2}1\. a GPU for \S+/,
    );
    expect((await hosts.run(['jobs', '--hosts', 'queued'])).stdout).toMatch(
      /^ +ID NAME +STATE .*\n +queued:1 train +waiting +\(1\) .* true\n +1st in the queue: .*\nqueued:\S+ +running +0 .*\n$/,
    );
    holder.stdin?.end();
    await finished(holder, 'exit');
    await machine.runCommand(['wait', '1']);
  });

  test.skipIf(!process.env.GPU_OWNER_SOAK)(
    'top keeps little of a host that sends long lines without end',
    async () => {
      const ssh = join(hosts.viewer.directory, 'ssh-endless');
      const line = `head -c 15000000 /dev/zero | tr '\\0' x; echo`;
      const script = `#!/bin/sh\nfor line in $(seq 40); do ${line}; done; echo ended >&2; exit 3\n`;
      writeFileSync(ssh, script, { mode: 0o755 });
      const words = ['top', '--hosts', 'a', '--interval=1s', '--timeout=1m'];
      const child = hosts.viewer.startCommand(words, { env: { ...env, GPU_OWNER_SSH: ssh } });
      await output(child, /^! its shell ran no command/m);
      const peak = /^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1];
      expect(Number(peak)).toBeLessThan(400_000);
      sendSignal(child.pid, 'SIGTERM');
      await finished(child, 'exit');
    },
  );

  const many = process.env.GPU_OWNER_SOAK ? 50 : 8;
  test(`${many} hosts are asked at once: it takes little longer than the slowest and as many logins`, async () => {
    const answer = await json('status', '--hosts', 'a');
    const file = join(hosts.viewer.directory, 'answer.json');
    writeFileSync(file, JSON.stringify(answer.all.a.gpus));
    const names = Array.from({ length: many }, (_, i) => `fleet-${i}`);
    for (const name of names) hosts.add(name, { shell: 'dash', program: standIn(`sleep 3; cat ${file}`) });
    const timed = async (act: () => Promise<unknown>) => {
      const start = performance.now();
      await act();
      return performance.now() - start;
    };
    const logins = await timed(() =>
      Promise.all(
        names.map((name) => hosts.viewer.run(['sh', '-c', `$GPU_OWNER_SSH ${name} true`], { env })),
      ),
    );
    const took = await timed(async () => {
      const { all } = await json('status', '--hosts', names.join());
      expect(Object.keys(all)).toEqual(names);
      expect(names.filter((name) => all[name].gpus?.length !== 2)).toEqual([]);
    });
    // One after the other, they take 3 s each.
    expect(took).toBeLessThan(13_000 + logins);
  });

  test('all asks the hosts of the configuration, with their commands', async () => {
    const there = { '.opt/gpu-owner': `#!/bin/sh\nGPU_OWNER_SIMULATE=1 exec "$OWNER" "$@"\n` };
    hosts.add('c', { program: null, files: there });
    const owner = `OWNER=${join(root, 'bin/gpu-owner.cjs')}`;
    const command = `PATH=$PATH:${join(process.execPath, '..')} ${owner} ~/.opt/gpu-owner`;
    const configured = hosts.configure(`hosts: [a, 'c=${command}', 'a=/nowhere/gpu-owner']\n`);
    const { code, stdout } = await hosts.run(['status', '--hosts', 'all', '--json'], configured);
    const all = JSON.parse(stdout);
    expect(code).toBe(0);
    expect(Object.keys(all)).toEqual(['a', 'c']);
    expect(all.c.gpus).toMatchObject([{ index: 0 }]);
    expect(all.a.error).toMatchObject({
      code: 'ERR_HOST_NOT_INSTALLED',
      message: expect.stringMatching(/configured command .*\/nowhere\/gpu-owner.*not found/),
    });
    const none = await hosts.run(['status', '--hosts', 'all']);
    expect(none).toMatchObject({ code: 64, stderr: expect.stringMatching(/no host is configured/) });
    const wrong = await hosts.run(
      ['status', '--hosts', 'a'],
      hosts.configure('hostGroups: { lab: [a, -oProxyCommand=id] }\n'),
    );
    expect(wrong).toMatchObject({
      code: 78,
      stderr: expect.stringMatching(/config\.yaml:1: .*not a valid host/),
    });
  });

  test('a login has any shell, prints what it likes, and finds gpu-owner in ~/.local/bin', async () => {
    const program = `#!/bin/sh\nexec ${process.execPath} ${join(root, 'bin/gpu-owner.cjs')} "$@"\n`;
    hosts.add('local', { program: null, files: { '.local/bin/gpu-owner': program } });
    for (const shell of shells) hosts.add(`with-${shell}`, { shell });
    const noise =
      'echo "[]"; echo welcome >&2; echo \'{"error":{"code":"ERR_X","message":"x"}}\' >&2; sleep 600 &\n';
    hosts.add('noisy', { files: { '.bashrc': noise } });
    const names = ['local', ...shells.map((shell) => `with-${shell}`), 'noisy'];
    const { code, all } = await json('status', '--hosts', names.join());
    expect({ code, names: Object.keys(all) }).toEqual({ code: 0, names });
    for (const name of names) expect(all[name], name).toMatchObject({ gpus: [{ index: 0 }, { index: 1 }] });
  });

  test('what is wrong with a host or its gpu-owner is told from others', async () => {
    hosts.addName('refusing', ['Port 1']);
    hosts.addName('password');
    hosts.addName('stranger', ['UserKnownHostsFile /dev/null']);
    const there = (error: object) => `echo '${JSON.stringify({ error })}' >&2; exit 69`;
    const unknown = "there is no command 'status'".replaceAll("'", String.raw`\u0027`);
    const old = `echo '{"error":{"code":"ERR_INVALID_ARGUMENT","message":"…","unknown":"${unknown}"}}' >&2; exit 64`;
    const programs = {
      'not-installed': null,
      old: standIn(old),
      'without-driver': standIn(there({ code: 'ERR_NO_DRIVER', message: 'no driver\u001b[2J' })),
      senseless: standIn('echo "[1, 2"'),
      absurd: standIn(`echo '[{"index": -1}]'`),
      crashing: standIn('kill -9 $$'),
    };
    for (const [name, program] of Object.entries(programs)) hosts.add(name, { program });
    const errors: Record<string, [code: string, message: RegExp]> = {
      refusing: ['ERR_HOST_UNREACHABLE', /connection refused/],
      password: ['ERR_HOST_LOGIN', /asks for a password.*ssh-copy-id password/],
      stranger: ['ERR_HOST_KEY', /host key is unknown.*ssh stranger/],
      'not-installed': ['ERR_HOST_NOT_INSTALLED', /neither in PATH nor in ~\/\.local\/bin/],
      old: [
        'ERR_HOST_VERSION',
        /^gpu-owner 9\.9\.9 there is too old: there is no command 'status'\. Upgrade it$/,
      ],
      'without-driver': ['ERR_NO_DRIVER', /^no driver$/],
      senseless: ['ERR_HOST_ANSWER', /makes no sense: it is not JSON/],
      absurd: ['ERR_HOST_ANSWER', /gpus\[0\]\.index has an impossible value/],
      crashing: ['ERR_HOST_ANSWER', /failed with exit code 137/],
    };
    const { code, all } = await json('status', '--hosts', Object.keys(errors).join());
    expect(code).toBe(69);
    for (const [name, [code, message]] of Object.entries(errors))
      expect(all[name].error, name).toEqual({ code, message: expect.stringMatching(message) });
  });

  test('an older version that knows fewer fields is shown', async () => {
    const gpu = `{"index":0,"uuid":"GPU-1","name":"\\u001b]0;x\\u0007Old","state":"free","memory":{"usedBytes":1e300}}`;
    hosts.add('older', { program: standIn(`echo '[${gpu}]'`) });
    const { stdout, code } = await hosts.run(['status', '--hosts', 'older']);
    expect(code).toBe(0);
    expect(stdout).toMatch(/^older:\nGPU .*\n {2}0 {2}Old +\? \/ {5}\? +\? +\?\/\? +\? {2}free\n$/m);
  });

  soakTest.concurrent('a host that never answers is given up, and the others are shown before', async () => {
    const more = { env: { ...env, GPU_OWNER_TIMEOUTS: undefined } };
    const child = hosts.viewer.startCommand(['status', '--hosts', 'silent,a', '--timeout', '8s'], more);
    const end = finished(child);
    const jobs = hosts.viewer.startCommand(['jobs', '--hosts', 'silent,a', '--timeout', '8s'], more);
    await Promise.all([output(jobs, /^No jobs|^ *ID/), output(child, /^a:\n/m)]);
    expect([jobs.exitCode, child.exitCode]).toEqual([null, null]);
    expect(await end).toMatchObject({
      code: 0,
      stderr: expect.stringMatching(
        /^gpu-owner: waiting for an answer of silent(?:, a)?\ngpu-owner: silent: no answer within 8 s\. .*--timeout\n$/,
      ),
    });
    await until(() => sshProcesses().every((pid) => !wordsOf(pid).includes('silent')));
  });

  soakTest.concurrent('a job is shown before another host has answered', async () => {
    const id = (await hosts.run(['submit', '--on', 'a', '--', 'true'])).stdout.trim();
    const more = { env: { ...env, GPU_OWNER_TIMEOUTS: undefined } };
    const child = hosts.viewer.startCommand(['jobs', 'silent:1', id], more);
    const end = finished(child);
    await output(child, /^state/m);
    expect(child.exitCode).toBe(null);
    expect(await end).toMatchObject({
      code: 69,
      stderr: expect.stringMatching(/^gpu-owner: silent: no answer/m),
    });
  });

  soakTest.concurrent('a host that turns logins away is asked again, for a while', async () => {
    let [turnedAway, logins] = [2, 0];
    // As sshd does at MaxStartups.
    const gate = createServer((socket): void => {
      socket.on('error', () => {});
      logins++;
      if (logins <= turnedAway) {
        socket.destroy();
        return;
      }
      const sshd = connect(hosts.port, '127.0.0.1').on('error', () => {});
      socket.pipe(sshd).pipe(socket);
    }).listen(0, '127.0.0.1');
    await until(() => gate.listening);
    hosts.addName('gate', [
      `Port ${(gate.address() as AddressInfo).port}`,
      `HostKeyAlias [127.0.0.1]:${hosts.port}`,
      `IdentityFile ${join(dirname(hosts.configuration), 'key-a')}`,
    ]);
    const answer = await json('status', '--hosts', 'gate');
    expect(answer.all.gate.gpus).toHaveLength(2);
    expect(logins).toBe(3);
    [turnedAway, logins] = [Number.POSITIVE_INFINITY, 0];
    const refused = await json('status', '--hosts', 'gate');
    expect(refused.all.gate.error).toMatchObject({
      code: 'ERR_HOST_UNREACHABLE',
      message: expect.stringContaining('MaxStartups'),
    });
    expect(logins).toBe(4);
    gate.close();
  });

  soakTest.concurrent('the time limit of a host doesn’t count the logins of those before it', async () => {
    // Each login takes 300 ms of what all share, as of a processor.
    const ssh = join(hosts.viewer.directory, 'one-by-one');
    const answer = JSON.stringify([{ index: 0, uuid: 'GPU-1', name: 'A', state: 'free', memory: {} }]);
    const bin = join(hosts.viewer.directory, 'bin');
    mkdirSync(bin);
    writeFileSync(join(bin, 'gpu-owner'), `#!/bin/sh\necho '${answer}'\n`, { mode: 0o755 });
    const script = `for last; do :; done\nflock '${ssh}' sleep 0.3\nPATH=${bin}:$PATH exec sh -c "$last"`;
    writeFileSync(ssh, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    const names = Array.from({ length: 24 }, (_, i) => `queued-${i}`);
    const { stdout, stderr } = await hosts.viewer.runCommand(
      ['status', '--json', '--timeout', '6s', '--hosts', names.join(',')],
      { env: { ...env, GPU_OWNER_SSH: ssh } },
    );
    const all = JSON.parse(stdout);
    expect(
      names.filter((name) => all[name].error !== undefined),
      stderr,
    ).toEqual([]);
  });

  test.each(['SIGKILL', 'SIGINT'] as const)('nothing is left behind by %s', async (signal) => {
    const child = hosts.viewer.startCommand(['status', '--hosts', 'silent', '--timeout', '10m'], { env });
    const end = finished(child);
    await until(() => sshProcesses().filter((pid) => nameOf(pid) === 'ssh').length >= 1);
    sendSignal(child.pid, signal);
    expect(await end).toMatchObject({ code: null, signal });
    await until(() => sshProcesses().length === 0);
  });

  test('a connection that ssh keeps for later outlives the question, also through a gateway', async () => {
    const control = join(hosts.machines[0]?.directory as string, 'control');
    const gateway = [`ControlPath ${control}`, 'ControlMaster auto', 'ControlPersist 60'];
    hosts.add('kept', {
      config: [...gateway, `ProxyCommand nc 127.0.0.1 ${hosts.port}`].slice(0, has('nc') ? 4 : 3),
    });
    const first = await json('status', '--hosts', 'kept', '--timeout', '30s');
    expect(first.all.kept.gpus).toHaveLength(2);
    expect(existsSync(control)).toBe(true);
    expect((await json('status', '--hosts', 'kept')).all.kept.gpus).toHaveLength(2);
    const check = spawnSync(env.GPU_OWNER_SSH as string, ['-O', 'check', 'kept'], { encoding: 'utf8' });
    expect(check.stderr).toMatch(/Master running/);
    spawnSync(env.GPU_OWNER_SSH as string, ['-O', 'exit', 'kept']);
    await until(() => sshProcesses().length === 0);
  });

  test('without ssh it is said so', async () => {
    const { code, stderr } = await hosts.run(['status', '--hosts', 'a'], {
      ...env,
      GPU_OWNER_SSH: '/nowhere/ssh',
    });
    expect({ code, stderr }).toEqual({
      code: 69,
      stderr: 'gpu-owner: a: /nowhere/ssh is not installed here. Install the OpenSSH client\n',
    });
  });

  test('nothing of it is left in the home of a host', () => {
    const home = join(hosts.machines.at(1)?.directory as string, 'home');
    expect(readdirSync(home)).toEqual([]);
  });
});
