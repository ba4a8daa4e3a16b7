// `run --on` and `submit --on`: commands on other machines over a real ssh, each with simulated GPUs of its own.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Host } from '../../lib/config/index.ts';
import { chooseHosts } from '../../lib/fleet/index.ts';
import { runOnHost } from '../../lib/fleet/remote-command.ts';
import { Jobs } from '../jobs/background.ts';
import { finished, type Machine, output, python, root, until } from '../support/machine.ts';
import { isAlive, processesWith, sendSignal, stat } from '../support/processes.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';

const reason = whyNoSSHD();
const bridge = join(root, 'test/jobs/fixtures/pty_bridge.py');
const launcher = join(root, 'bin/gpu-owner.cjs');
const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);

describe.skipIf(reason !== null)(`--on${reason === null ? '' : ` (skipped: ${reason})`}`, () => {
  let hosts: Hosts;
  let env: Record<string, string | undefined>;
  let a: Machine;
  let place: string;

  beforeAll(async () => {
    hosts = await Hosts.start();
    a = hosts.add('a', { files: { '.bashrc': 'echo noise; echo noise >&2' } });
    hosts.add('b', { gpus: 3 });
    hosts.addName('down', ['Port 1']);
    env = hosts.env;
    place = join(hosts.viewer.directory, 'a project');
    mkdirSync(place);
  });
  afterAll(() => hosts?.close());

  const run = (args: string[], input = '', more = env) =>
    hosts.viewer.run([launcher, 'run', ...args], { env: more, cwd: place }, input);
  const start = (args: string[]) => hosts.viewer.start([launcher, 'run', ...args], { env, cwd: place });
  const says = (text: string) => ['sh', '-c', text];
  const file = (name: string) => join(place, name);
  const pidIn = async (name: string) => {
    await until(() => readFileSync(file(name), { encoding: 'utf8', flag: 'a+' }).endsWith('\n'));
    return Number(readFileSync(file(name), 'utf8'));
  };
  /** A gpu-owner where another user takes what `find` has found. */
  const quicker = `case "$*" in find*) exec ${process.execPath} ${launcher} "$@";; esac
echo "gpu-owner: 1 GPU wanted, 0 free:" >&2
exit 75`;
  /** A gpu-owner that finds nothing before there is a file. */
  const slowToFind = (path: string) =>
    `case $1 in find) while [ ! -e '${path}' ]; do sleep 0.05; done;; esac; exec ${process.execPath} ${launcher} "$@"`;
  const free = (machine: Machine) =>
    until(async () => (await machine.states()).every((state) => state === 'free'));

  test('input, output, errors, arguments, directory and exit code are those of the command', async () => {
    const words = ['a b', '', "it's", '$HOME', 'line\nbreak', '--', 'ü'];
    const script = 'echo "$CUDA_VISIBLE_DEVICES" >&2; pwd; for word; do echo "[$word]"; done; cat; exit 7';
    const { code, stdout, stderr } = await run(
      ['--on', 'b', '-n', '2', '--', ...says(script), 'sh', ...words],
      'in',
    );
    expect(code).toBe(7);
    expect(stdout).toBe([place, ...words.map((word) => `[${word}]`), 'in'].join('\n'));
    expect(stderr).toMatch(/^GPU-\S+,GPU-\S+\n$/);
    await free(hosts.machines[2] as Machine);
  });

  test('the noise of a login isn’t output, and an exit code of 255 is the command’s', async () => {
    const { code, stdout } = await run(['--on', 'a', '--', ...says('echo out; exit 255')]);
    expect({ code, stdout }).toEqual({ code: 255, stdout: 'out\n' });
  });

  test('where nobody reads its output any more, the exit code is not 0', async () => {
    const words = [launcher, 'run', '--on', 'a', '--', 'yes'];
    const script = 'trap "" PIPE; { "$@"; echo "$?" >&2; } | head -n 1';
    const { stdout, stderr } = await hosts.viewer.run(['sh', '-c', script, 'sh', ...words], {
      env,
      cwd: place,
    });
    expect({ stdout, stderr }).toEqual({ stdout: 'y\n', stderr: expect.stringMatching(/^141$/m) });
    await free(a);
  });

  test('errors name the cause, and end as a run on this machine would', async () => {
    const wrong: [string[], number, RegExp][] = [
      [['--on', 'down'], 69, /^gpu-owner: down: connection refused/],
      [['--on', 'a', '-n', '5'], 64, /5 GPUs/],
      [['--on', 'a,b', '-n', '9'], 64, /^gpu-owner: [ab]: .*\ngpu-owner: [ab]: /],
      [['--on=-oProxyCommand=x'], 64, /not a valid host/],
      [['--on', 'any'], 64, /no host is configured/],
    ];
    for (const [words, code, message] of wrong) {
      const ended = await run([...words, '--', 'true']);
      expect(ended).toMatchObject({ code, stdout: '', stderr: expect.stringMatching(message) });
    }
    hosts.add('bare', { program: null });
    const bare = await run(['--on', 'bare', '--', 'true']);
    expect(bare).toMatchObject({
      code: 69,
      stderr: expect.stringMatching(/^gpu-owner: bare: gpu-owner is neither in PATH/),
    });
    const gone = join(hosts.viewer.directory, 'gone');
    mkdirSync(gone);
    const child = hosts.viewer.start(
      [
        'sh',
        '-c',
        `rmdir "$0"; mkdir "$0.2"; cd "$0.2"; exec "$@"`,
        gone,
        launcher,
        'run',
        '--on',
        'a',
        '--',
        'true',
      ],
      { env: { ...env, GPU_OWNER_SSH: movingAway(`${gone}.2`) }, cwd: place },
    );
    expect(await finished(child)).toMatchObject({
      code: 64,
      stderr: expect.stringMatching(
        /a: there is no directory .*gone\.2'.*--on runs a command in the same directory/,
      ),
    });
  });

  test('arguments that are too long once they are quoted are refused', async () => {
    const submit = ['submit', '--on', 'a', '--', 'echo', "'".repeat(40_000)];
    for (const words of [submit, ['run', ...submit.slice(1)]])
      expect(await hosts.viewer.run([launcher, ...words], { env, cwd: place })).toMatchObject({
        code: 64,
        stderr: expect.stringMatching(/arguments of \d+ bytes are too many for ssh/),
      });
    const most = "'".repeat(22_000);
    expect(await run(['--on', 'b', '--', 'echo', most])).toMatchObject({ code: 0, stdout: `${most}\n` });
  });

  test('a login that ends before the command is told as such', async () => {
    hosts.add('leaving', { forced: 'exit 3' });
    const { code, stderr } = await run(['--on', 'leaving', '--', 'true']);
    expect({ code, stderr }).toEqual({
      code: 69,
      stderr: expect.stringMatching(/leaving: its shell ran no command \(exit code 3\)/),
    });
  });

  test('no file is left of a gpu-owner that was killed', async () => {
    const files = join(hosts.viewer.directory, "it's temporary");
    mkdirSync(files);
    const words = [launcher, 'run', '--on', 'a', '--', ...says('echo $$ > killed; exec sleep 600')];
    const child = hosts.viewer.start(words, { env: { ...env, TMPDIR: files }, cwd: place });
    await pidIn('killed');
    expect(readdirSync(files).filter((name) => name.startsWith('gpu-owner-ssh-'))).toHaveLength(1);
    sendSignal(child.pid, 'SIGKILL');
    await until(() => readdirSync(files).every((name) => !name.startsWith('gpu-owner-ssh-')));
    await free(a);
  });

  /** An ssh before which a directory is removed: here it is another machine's. */
  const movingAway = (directory: string) => {
    const path = join(hosts.viewer.directory, 'ssh-moving');
    writeFileSync(path, `#!/bin/sh\nrmdir '${directory}'\nexec ${env.GPU_OWNER_SSH} "$@"\n`, { mode: 0o755 });
    return path;
  };

  test('the end of the connection, of ssh or of gpu-owner here ends the command there', async () => {
    const ways: [string, (child: number) => void][] = [
      ['gpu-owner', (pid) => sendSignal(pid, 'SIGKILL')],
      ['term', (pid) => sendSignal(pid, 'SIGTERM')],
    ];
    for (const [name, end] of ways) {
      const child = start(['--on', 'a', '--', ...says(`echo $$ > ${name}; exec sleep 600`)]);
      const outcome = finished(child, 'exit');
      const pid = await pidIn(name);
      end(child.pid as number);
      await outcome;
      await until(() => !isAlive(pid));
      await free(a);
    }
    // The shell gets SIGHUP, and so does the program that it waits for.
    const child = start(['--on', 'a', '--', ...says('sleep 600 & echo $! > lost; wait; true')]);
    const outcome = finished(child);
    const pid = await pidIn('lost');
    sendSignal(sshdOf(pid), 'SIGKILL');
    const { code, stderr } = await outcome;
    expect({ code, stderr }).toEqual({
      code: 255,
      stderr: expect.stringMatching(/Connection to \S+ closed by remote host/),
    });
    await until(() => !isAlive(pid));
    await free(a);
  });

  /** The process of sshd that a program has come from. */
  function sshdOf(pid: number): number {
    for (let at = pid; at > 1; at = stat(at)?.parent ?? 0) {
      if (readFileSync(`/proc/${at}/comm`, 'utf8').startsWith('sshd')) return at;
    }
    throw new Error('not below sshd');
  }

  test('on a terminal the command has one, of the same size, and Ctrl-C reaches it', async () => {
    const resize = `stty -F /dev/tty rows 40 cols 123; exec ${launcher} run --on a -- "$@"`;
    const script = 'trap "echo caught; exit 3" INT; tty; stty size; echo ready; while :; do sleep 0.1; done';
    const child = hosts.viewer.start([python, bridge, 'sh', '-c', resize, 'sh', ...says(script)], {
      env,
      cwd: place,
    });
    const seen = finished(child);
    await output(child, /ready/);
    child.stdin?.write('\u0003');
    const { stdout } = await seen;
    expect(stdout).toMatch(/\/dev\/pts\/\d+\r?\n.*40 123\r?\n.*ready.*caught.*\[status 3\]/s);
    expect(stdout).not.toContain('noise');
  });

  test('any takes the first host that is free now, and says why none is', async () => {
    const configured = hosts.configure('hosts: [down, a, b]\nhostGroups: { lab: [a, b] }\n');
    const one = await run(['--on', 'any', '-n', '3', '--', ...says('cat; exit 75')], 'typed', configured);
    expect(one).toMatchObject({ code: 75, stdout: 'typed', stderr: '' });
    const none = await run(['--on', 'any', '-n', '4', '--', 'true'], '', configured);
    expect(none.code).toBe(69);
    const missing = await run(['--on', 'lab', '--', 'pyhton'], '', configured);
    expect(missing.code).toBe(64);
    expect(missing.stderr).toMatch(/^gpu-owner: b: cannot run 'pyhton': not found in PATH/m);
    const holder = (hosts.machines[2] as Machine).startCommand(['hold', '-n', '1']);
    await output(holder, /visibleDevices/);
    const busy = await run(['--on', 'a,b,down', '--no-wait', '-n', '3', '--', 'true']);
    expect(busy.code).toBe(75);
    expect(busy.stderr).toMatch(/^gpu-owner: b: .*GPU 0: leased by/m);
    expect(busy.stderr).toMatch(/^gpu-owner: a: /m);
    expect(busy.stderr).toMatch(/^gpu-owner: down: connection refused/m);
    holder.stdin?.end();
    await finished(holder, 'exit');
  });

  test('any goes on with the next host where somebody was quicker', async () => {
    const tried = file('tried');
    hosts.add('taken', { program: `case $1 in run) touch '${tried}';; esac\n${quicker}` });
    // The other one answers later, so this one is tried first.
    hosts.add('slow', { program: slowToFind(tried) });
    const ended = await run(['--on', 'taken,slow', '--', ...says('cat; exit 9')], 'all of it');
    expect(ended).toMatchObject({ code: 9, stdout: 'all of it', stderr: '' });
    const refused = await run(['--on', 'taken,down', '--no-wait', '--', 'true']);
    expect(refused).toMatchObject({
      code: 75,
      stderr: expect.stringMatching(/^gpu-owner: taken: 1 GPU wanted, 0 free$/m),
    });
  });

  test('any ends with its command, also while another host hasn’t answered', async () => {
    const silent = createServer(() => {}).listen(0, '127.0.0.1');
    await until(() => silent.listening);
    hosts.addName('silent', [`Port ${(silent.address() as AddressInfo).port}`]);
    const start = performance.now();
    const submitted = await hosts.viewer.run([launcher, 'submit', '--on', 'silent,b', '--', 'true'], {
      env,
      cwd: place,
    });
    expect(submitted).toMatchObject({ code: 0, stdout: expect.stringMatching(/^b:\d+\n$/) });
    expect(await run(['--on', 'silent,b', '--', ...says('exit 3')])).toMatchObject({ code: 3, stderr: '' });
    expect(performance.now() - start).toBeLessThan(20_000); // each of the two would wait for it for 10 s
    silent.close();
    await (hosts.machines[2] as Machine).runCommand(['wait', submitted.stdout.trim().slice(2)]);
  });

  test('submit --on any --no-wait queues nowhere: it goes on where somebody was quicker, and ends with 75 at the end', async () => {
    const submit = (...args: string[]) =>
      hosts.viewer.run([launcher, 'submit', '--on', ...args], { env, cwd: place });
    // Another job takes all of its GPUs between the answer and the job.
    const tried = file('submitted');
    const [holding, ending] = ['holding', 'ending'].map(file);
    const hold = `${process.execPath} ${launcher} run -n 2 -- sh -c 'touch "${holding}"; until [ -e "${ending}" ]; do sleep 0.05; done'`;
    const overtaken = hosts.add('overtaken', {
      program: `case $1 in submit) touch '${tried}'; ${hold} >/dev/null 2>&1 </dev/null & until [ -e '${holding}' ]; do sleep 0.05; done;; esac; exec ${process.execPath} ${launcher} "$@"`,
    });
    hosts.add('next', { program: slowToFind(tried) });
    expect(await submit('overtaken,next', '--', 'true')).toMatchObject({
      code: 0,
      stdout: 'next:1\n',
      stderr: '',
    });
    expect(await submit('overtaken,down', '--no-wait', '--', 'true')).toMatchObject({
      code: 75,
      stdout: '',
      stderr: expect.stringMatching(/^gpu-owner: overtaken: .*GPU 0: leased by/m),
    });
    writeFileSync(ending as string, '');
    await free(overtaken);
    expect((await overtaken.runCommand(['jobs', '--all', '--json'])).stdout.trim()).toBe('[]');
  });

  test('as many jobs of submit --on any --no-wait run at once as there are GPUs, and none waits', async () => {
    const [one, two] = ['one', 'two'].map((name) => hosts.add(name, { gpus: 2 })) as [Machine, Machine];
    const go = file('go-all');
    const words = [
      'submit',
      '--on',
      'one,two',
      '--no-wait',
      '--',
      ...says(`until [ -e "${go}" ]; do sleep 0.05; done`),
    ];
    const ends = await Promise.all(
      Array.from({ length: 6 }, () => hosts.viewer.run([launcher, ...words], { env, cwd: place })),
    );
    const said = ends.map(({ code, stdout, stderr }) => `${code} ${stdout}${stderr}`).join('');
    expect(ends.map(({ code }) => code).sort(), said).toEqual([0, 0, 0, 0, 75, 75]);
    for (const machine of [one, two]) {
      expect(await machine.states(), said).toEqual(['leased', 'leased']);
      expect((await machine.runCommand(['queue', '--json'])).stdout.trim()).toBe('[]');
    }
    writeFileSync(go, '');
    await free(one);
    await free(two);
  });

  test('a host with an older version is told so', async () => {
    hosts.add('old', {
      program: `case "$*" in *over-ssh*) echo 'gpu-owner: there is no option --over-ssh; see --help' >&2; exit 64;; esac`,
    });
    const { code, stderr } = await run(['--on', 'old', '--', 'true']);
    expect({ code, stderr }).toEqual({
      code: 64,
      stderr: expect.stringMatching(/there is no option --over-ssh/),
    });
  });

  test('submit prints the address; the job goes on without the connection', async () => {
    const submit = (args: string[]) => hosts.viewer.run([launcher, 'submit', ...args], { env, cwd: place });
    const words = ['--on', 'a', '--name', 'far', '--', ...says('pwd; exit 5')];
    const { code, stdout, stderr } = await submit(words);
    expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'a:1\n', stderr: '' });
    await new Jobs(a).reach(1, 'failed');
    expect((await a.runCommand(['logs', 'far'])).stdout).toBe(`${place}\n`);
    const any = await submit(['--on', 'down,a', '--', 'true']);
    expect(any).toMatchObject({ code: 0, stdout: 'a:2\n', stderr: '' });
    const impossible = await submit(['--on', 'a', '-n', '9', '--', 'true']);
    expect(impossible).toMatchObject({
      code: 64,
      stdout: '',
      stderr: expect.stringMatching(/^gpu-owner: a: /),
    });
    await a.runCommand(['wait', '2']);
  });

  test.each([
    ['stood still', '', 'no answer within 8 s'],
    ['ended after words of a shell', 'Authenticated to a.\nx: Permission denied', 'the connection broke'],
  ])(
    'a job that was submitted over a connection which then %s is not submitted anywhere else',
    async (...of) => {
      const [name, LOST, reason] = of;
      const [ASKED, SUBMITTED] = ['asked', 'submitted'].map((file) =>
        join(hosts.viewer.directory, file + name),
      );
      const words = [launcher, 'submit', '--on', 'a,b', '--name', name.split(' ').join('-'), '--', 'true'];
      const { code, stdout, stderr } = await hosts.viewer.run(words, {
        env: {
          ...env,
          GPU_OWNER_TIMEOUTS: 'grant:8000',
          GPU_OWNER_SSH: fixture('still-ssh'),
          SSH: env.GPU_OWNER_SSH,
          ASKED,
          SUBMITTED,
          LOST,
        },
        cwd: place,
      });
      expect({ code, stdout, stderr }).toEqual({
        code: 69,
        stdout: '',
        stderr: expect.stringMatching(
          new RegExp(`^gpu-owner: a: .*${reason}.*The job may have been submitted.*\\n$`),
        ),
      });
      expect((await a.runCommand(['wait', name.split(' ').join('-')])).code).toBe(0);
    },
  );

  test('a job is submitted once where the connection that ssh shares ends during the login', async () => {
    const [first, second, go, control] = ['first', 'second', 'go', 'c'].map((name) =>
      join(hosts.viewer.directory, name),
    ) as [string, string, string, string];
    // `find` comes first. The login of `submit` takes its time.
    const login = `mkdir '${first}' 2>/dev/null || { : >'${second}'; until [ -e '${go}' ]; do sleep 0.05; done; }`;
    hosts.add('shared', {
      files: { '.bashrc': login },
      config: ['ControlMaster auto', `ControlPath ${control}`, 'ControlPersist 60'],
    });
    const words = [launcher, 'submit', '--on', 'shared,down', '--', 'true'];
    const child = hosts.viewer.start(words, { env, cwd: place });
    const end = finished(child);
    await until(() => existsSync(second));
    const { stderr } = await hosts.viewer.run([String(env.GPU_OWNER_SSH), '-O', 'check', 'shared'], { env });
    sendSignal(Number(/pid=(\d+)/.exec(stderr)?.[1]), 'SIGKILL');
    writeFileSync(go, '');
    expect(await end).toMatchObject({ code: 0, stdout: 'shared:1\n' });
  });

  test('a host that grants nothing after it was chosen is given up, and the command may be running', async () => {
    const [host] = chooseHosts('still');
    const program = join(hosts.viewer.directory, 'still');
    writeFileSync(program, '#!/bin/sh\nexec sleep 60\n', { mode: 0o755 });
    vi.stubEnv('GPU_OWNER_SSH', program);
    const command = {
      ...{ words: ['run', '--', 'true'], directory: place, settings: null },
      ...{ hasTerminal: false, isQuiet: true },
    };
    const [onOutput, onErrors] = [() => {}, () => {}];
    const end = await runOnHost(host as Host, { ...command, grantTimeoutMs: 100, onOutput, onErrors });
    vi.unstubAllEnvs();
    expect(end).toEqual({
      state: 'failed',
      isCertain: false,
      error: {
        code: 'ERR_HOST_TIMEOUT',
        message: expect.stringMatching(
          /^no GPUs within 100 ms\. The command may be running\..*--hosts still/,
        ),
      },
    });
  });

  test.each([
    ['when it had begun there', 'reached'],
    ['when nothing had come back', ''],
  ])('a command that may run on a host that was lost %s is not started anywhere else', async (_, COMES) => {
    // The first one refuses; all the same the end mustn't look as if no GPU were free.
    const full = `full-${COMES}x`;
    hosts.add(full, { program: quicker });
    rmSync(file('started'), { force: true });
    const { code, stdout, stderr } = await run(
      ['--on', `${full},b,a`, '--', ...says('echo once >>started; sleep 1; echo ended >>started')],
      '',
      {
        ...env,
        GPU_OWNER_SSH: fixture('lost-ssh'),
        SSH: env.GPU_OWNER_SSH,
        COMES,
        STARTED: file('started'),
        SAID: join(hosts.viewer.directory, 'said'),
      },
    );
    expect({ code, stdout, stderr }).toEqual({
      code: 69,
      stdout: '',
      stderr: expect.stringMatching(
        /^gpu-owner: full-\w+: .*\ngpu-owner: b: the connection broke: Timeout.*The command may be running.*--hosts b`\n$/,
      ),
    });
    await until(() => readFileSync(file('started'), 'utf8').endsWith('ended\n'));
    expect(readFileSync(file('started'), 'utf8')).toBe('once\nended\n');
    await free(hosts.machines[2] as Machine);
  });

  test('no ssh is left', async () => {
    await until(() => processesWith(`GPU_OWNER_SSH=${env.GPU_OWNER_SSH}`).length === 0);
  });
});
