// `run --on` and `submit --on`: commands on other machines over a real ssh, each with simulated GPUs of its own.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Jobs } from '../jobs/background.ts';
import { finished, type Machine, output, python, root, until } from '../support/machine.ts';
import { isAlive, processesWith, sendSignal, stat } from '../support/processes.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';

const reason = whyNoSSHD();
const bridge = join(root, 'test/jobs/fixtures/pty_bridge.py');
const launcher = join(root, 'bin/gpu-owner.cjs');

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

  test.each([254, 255])('an exit code of %i is the command’s', async (exitCode) => {
    const { code, stdout } = await run(['--on', 'a', '--', ...says(`echo out; exit ${exitCode}`)]);
    expect({ code, stdout }).toEqual({ code: exitCode, stdout: expect.stringMatching(/out\n$/) });
  });

  test('errors name the cause, and end as a run on this machine would', async () => {
    const wrong: [string[], number, RegExp][] = [
      [['--on', 'down'], 255, /Connection refused/],
      [['--on', 'a', '-n', '5'], 64, /5 GPUs/],
      [['--on', 'a,b', '-n', '9'], 64, /^gpu-owner: [ab]: .*\ngpu-owner: [ab]: /],
      [['--on=-oProxyCommand=x'], 64, /not a valid host/],
      [['--on', 'any'], 64, /no host is configured/],
    ];
    for (const [words, code, message] of wrong) {
      const ended = await run([...words, '--', 'true']);
      expect(ended).toMatchObject({ code, stderr: expect.stringMatching(message) });
    }
    hosts.add('bare', { program: null });
    const bare = await run(['--on', 'bare', '--', 'true']);
    expect(bare).toMatchObject({
      code: 69,
      stderr: expect.stringMatching(/^gpu-owner: bare: gpu-owner is neither in PATH/m),
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
      stderr: expect.stringMatching(/a: there is no directory .*gone\.2'.*--on a:\/DIR/),
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

  /** An ssh before which a directory is removed: here it is another machine's. */
  const movingAway = (directory: string) => {
    const path = join(hosts.viewer.directory, 'ssh-moving');
    writeFileSync(path, `#!/bin/sh\nrmdir '${directory}'\nexec ${env.GPU_OWNER_SSH} "$@"\n`, { mode: 0o755 });
    return path;
  };

  test('the end of the connection or of gpu-owner here ends the command there', async () => {
    for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
      const child = start(['--on', 'a', '--', ...says(`echo $$ > ${signal}; exec sleep 600`)]);
      const outcome = finished(child, 'exit');
      const pid = await pidIn(signal);
      sendSignal(child.pid as number, signal);
      await outcome;
      expect(child.signalCode).toBe(signal);
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
  });

  test('any takes the first host that is free now, and says why none is', async () => {
    const configured = hosts.configure('hosts: [down, a, b]\n');
    const one = await run(['--on', 'any', '-n', '3', '--', ...says('cat; exit 75')], 'typed', configured);
    expect(one).toMatchObject({ code: 75, stdout: 'typed', stderr: '' });
    const none = await run(['--on', 'any', '-n', '4', '--', 'true'], '', configured);
    expect(none.code).toBe(69);
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

  test('submit prints the address; the job goes on without the connection', async () => {
    const submit = (args: string[]) => hosts.viewer.run([launcher, 'submit', ...args], { env, cwd: place });
    const words = ['--on', 'a', '--name', 'far', '--', ...says('pwd; exit 5')];
    const { code, stdout, stderr } = await submit(words);
    expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'a:1\n', stderr: '' });
    await new Jobs(a).reach(1, 'failed');
    expect((await a.runCommand(['logs', 'far'])).stdout).toBe(`${place}\n`);
    const any = await submit(['--on', 'down,a', '--no-wait', '--', 'true']);
    expect(any).toMatchObject({ code: 0, stdout: 'a:2\n', stderr: '' });
    const impossible = await submit(['--on', 'a', '-n', '9', '--', 'true']);
    expect(impossible).toMatchObject({
      code: 64,
      stdout: '',
      stderr: expect.stringMatching(/^gpu-owner: a: /),
    });
    await a.runCommand(['wait', '2']);
  });

  test('no ssh is left', async () => {
    await until(() => processesWith(`GPU_OWNER_SSH=${env.GPU_OWNER_SSH}`).length === 0);
  });
});
