// `top --hosts`: other machines over a real ssh, one login each.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { launcher, type Machine, output, until } from '../support/machine.ts';
import { processesWith, signalAll } from '../support/processes.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';
import { TestTerminal } from '../support/terminal.ts';

const reason = whyNoSSHD();

describe.skipIf(reason !== null)(`top --hosts${reason === null ? '' : ` (skipped: ${reason})`}`, () => {
  let hosts: Hosts;
  let a: Machine;
  const terminals: TestTerminal[] = [];
  /** A program that writes down each start. */
  const counted = (machine: string) => `echo start >> ${machine}; exec ${process.execPath} ${launcher} "$@"`;

  beforeAll(async () => {
    hosts = await Hosts.start();
    a = hosts.add('a', { files: { '.bashrc': 'echo welcome; echo >&2 hello' } });
    hosts.add('b', { gpus: 'a100x4-mig' });
    hosts.add('counted', { program: counted('"$HOME/starts"') });
    hosts.add('old', {
      program:
        'case $1 in --version) echo 0.1.0;; *) echo "{\\"error\\":{\\"code\\":\\"ERR_INVALID_ARGUMENT\\",\\"message\\":\\"\\",\\"unknown\\":\\"there is no command \'top\'\\"}}" >&2; exit 64;; esac',
    });
    hosts.add('liar', {
      program: `case $1 in --version) echo 9.9.9;; *) printf '%s\\n' '[{"time":"2025-11-20T10:00:00Z","gpus":[{"index":0,"uuid":"GPU-x","name":"\\u001b[2Jevil","state":"leased","memory":{},"shares":[null,{"user":7}],"lease":{"user":"\\u001b]0;x\\u0007root","since":7}}],"queue":[],"waiting":0,"intruders":[]}]'; sleep 1000;; esac`,
    });
    hosts.add('senseless', { program: `case $1 in --version) echo 9.9.9;; *) echo '[{"gpus":7}]'; esac` });
    hosts.addName('down', ['Port 1']);
  });
  afterEach(() => {
    for (const terminal of terminals.splice(0)) terminal.close();
  });
  afterAll(async () => {
    await hosts?.close();
  });

  function open(list: string, ...options: string[]): TestTerminal {
    const env = {
      ...hosts.viewer.env,
      NO_COLOR: undefined,
      LC_ALL: undefined,
      LC_CTYPE: undefined,
      ...hosts.env,
    };
    const words = [launcher, 'top', '--hosts', list, ...options];
    const terminal = new TestTerminal(words, { columns: 100, rows: 40, env: env as NodeJS.ProcessEnv });
    terminals.push(terminal);
    return terminal;
  }

  test('shows each host under its name, keeps it current, and says what is wrong with others', async () => {
    const terminal = open('a,b,down,old,senseless', '--interval', '200ms');
    await terminal.shows(/^a {2}2 GPUs: 2 free\n 0 .* free\n 1 .* free\nb {2}13 GPUs: 13 free$/m);
    await terminal.shows(/^down {2}connection refused\. /m);
    await terminal.shows(/^old {2}gpu-owner 0\.1\.0 there is too old: there is no command 'top'/m);
    await terminal.shows(/^senseless {2}its answer makes no sense/m);
    const child = a.startCommand(['hold', '--placeholder', 'none', '--as', 'mine']);
    await output(child, /visibleDevices/);
    await terminal.shows(/^a {2}2 GPUs: 1 free, 1 leased\n 0 .*mine/m);
    terminal.type('q');
    expect(await terminal.ended).toBe(0);
    child.stdin?.end();
  });

  test('logs in once, and again with pauses when the connection has broken; nothing is left afterwards', async () => {
    const home = join((hosts.machines.at(3) as Machine).directory, 'home');
    const starts = () => readFileSync(join(home, 'starts'), 'utf8').split('\n').length - 1;
    const terminal = open('counted', '--interval', '100ms');
    await terminal.shows(/ 2 GPUs: 2 free/);
    const clock = terminal.lines[0];
    await until(() => terminal.lines[0] !== clock);
    await until(() => terminal.lines[0] !== clock && starts() >= 2);
    // The version, and the stream.
    expect(starts()).toBe(2);
    const running = () => processesWith(`HOME=${home}`);
    signalAll(running(), 'SIGKILL');
    await terminal.shows(/^! \S/m);
    await terminal.shows(/ 0 .* free/);
    await until(() => !/^!/m.test(terminal.text), 'the host to be back');
    expect(starts()).toBe(4);
    const ssh = processesWith(`GPU_OWNER_SSH=${hosts.env.GPU_OWNER_SSH}`);
    expect(ssh.length).toBeGreaterThan(0);
    terminal.type('q');
    expect(await terminal.ended).toBe(0);
    await until(() => running().length === 0, 'the host to be left alone');
  });

  test('shows hostile snapshots harmlessly', async () => {
    const terminal = open('liar,a');
    await terminal.shows(/^liar {2}1 GPU: 1 leased\n 0 .*root/m);
    expect(terminal.output).not.toContain('\u001b]');
    expect(terminal.output).not.toContain('\u001b[2Jevil');
    terminal.type('q');
    expect(await terminal.ended).toBe(0);
  });

  test('prints plain lines once all hosts have answered, or have failed', async () => {
    const start = performance.now();
    const { code, stdout, stderr } = await hosts.run(['top', '--hosts', 'a,down', '--timeout', '1m']);
    expect(performance.now() - start).toBeLessThan(50_000);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(
      /^gpu-owner top {2}2 hosts {2}2 GPUs.*\n.*\na {2}2 GPUs.*\n 0 .*\n 1 .*\ndown {2}connection refused/,
    );
    expect((await hosts.run(['top', '--hosts', 'down'])).code).toBe(69);
    expect((await hosts.run(['top', '--hosts', 'a', '--json'])).code).toBe(64);
  });
});
