// Under a pseudo-terminal, the command behaves as without us.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import {
  fixture,
  isAlive,
  type LaunchOptions,
  launcherArguments,
  Probe,
  python,
  Running,
  restingKeeperOf,
  until,
  workspace,
} from '../support/keeper.ts';
import { isThere, processState, sendSignal, signalLiving } from '../support/processes.ts';

const probe = new Probe();
const env = { ...process.env, TERM: 'dumb', PYTHONSTARTUP: '', INPUTRC: '/dev/null', HISTFILE: '' };
const CTRL_C = '\u0003';
const CTRL_Z = '\u001a';
const CTRL_D = '\u0004';
const CTRL_BACKSLASH = '\u001c';

const inTerminal = (command: string[]): Running =>
  new Running(python, [fixture('pty_bridge.py'), ...command], 'pipe', { env });

const type = (terminal: Running, text: string): void => {
  terminal.child.stdin?.write(text);
};

/** An interactive bash with a script `g` that starts the keeper. */
async function shell(options: LaunchOptions): Promise<{ terminal: Running; lease: string }> {
  const { directory, leases } = workspace();
  const quoted = launcherArguments({ leases, ...options }).map(
    (word) => `'${word.replaceAll("'", "'\\''")}'`,
  );
  const script = join(directory, 'g');
  writeFileSync(script, `#!/bin/sh\nexec ${python} ${quoted.join(' ')}\n`, { mode: 0o755 });
  const rc = join(directory, 'rc');
  writeFileSync(rc, `PS1='$ '\nPATH=$PATH:${directory}\nset +o history\n`);
  const terminal = inTerminal(['bash', '--noprofile', '--rcfile', rc, '-i']);
  await terminal.printed(/\$ /);
  return { terminal, lease: leases[0] as string };
}

/** Types Ctrl-C at a prompt of Python, which a signal between its prompt and its wait for a key reaches with the next key only. */
async function interruptPrompt(terminal: Running, at: number): Promise<number> {
  type(terminal, CTRL_C);
  const key = setInterval(() => type(terminal, '\n'), 3_000);
  return terminal.printed(/KeyboardInterrupt[\r\n]+>>> /, at).finally(() => clearInterval(key));
}

test('Ctrl-C at a Python prompt is one KeyboardInterrupt, and the prompt lives on', async () => {
  const terminal = inTerminal([python, ...launcherArguments({ command: [python, '-q'] })]);
  let at = await terminal.printed(/>>> /);
  type(terminal, 'import time; print("sle" "eping"); time.sleep(60)\n');
  at = await terminal.printed(/sleeping/, at);
  type(terminal, CTRL_C);
  at = await terminal.printed(/KeyboardInterrupt[\r\n]+>>> /, at);
  at = await interruptPrompt(terminal, at);
  type(terminal, 'print(6 * 7)\n');
  at = await terminal.printed(/42[\r\n]+>>> /, at);
  expect(terminal.stdout.match(/KeyboardInterrupt/g)).toHaveLength(2);
  type(terminal, CTRL_D);
  await terminal.printed(/\[status 0\]/, at);
});

test('Ctrl-Z, fg and Ctrl-C work under an interactive bash', async () => {
  const { terminal, lease } = await shell({ command: [python, '-q'] });
  type(terminal, 'g\n');
  let at = await terminal.printed(/>>> /);
  for (let i = 0; i < 3; ++i) {
    type(terminal, `x${i} = ${i}\n`);
    at = await terminal.printed(/>>> /, at);
    type(terminal, CTRL_Z);
    at = await terminal.printed(/Stopped.*[\r\n]+\$ /, at);
    expect(await probe.isHeld(lease)).toBe(true);
    type(terminal, 'fg\n');
    at = await terminal.printed(/g[\r\n]/, at);
    type(terminal, `print("x" + str(x${i}))\n`);
    at = await terminal.printed(new RegExp(`x${i}[\\r\\n]+>>> `), at);
  }
  at = await interruptPrompt(terminal, at);
  type(terminal, 'exit(3)\n');
  at = await terminal.printed(/\$ /, at);
  expect(await probe.isHeld(lease)).toBe(false);
  type(terminal, 'echo "code $?"; exit\n');
  await terminal.printed(/code 3[\r\n][\s\S]*\[status/, at);
});

test('a read in the background and SIGTSTP to the front stop the job, and fg continues it', async () => {
  const { terminal } = await shell({
    command: ['sh', '-c', 'echo "front $PPID"; read -r line; echo "read $line"; read -r line'],
  });
  type(terminal, 'g &\n');
  // The job's output may come before or after the prompt.
  await terminal.printed(/\[1\] \d+/);
  let at = await terminal.printed(/front \d+/);
  const front = Number(/\[1\] (\d+)/.exec(terminal.stdout)?.[1]);
  await until(() => processState(front) === 'T', 'the front to be stopped');
  type(terminal, 'jobs\n');
  at = await terminal.printed(/Stopped.*[\r\n]+\$ /, at);
  type(terminal, 'fg\n');
  at = await terminal.printed(/fg[\r\n]+g[\r\n]/, at);
  type(terminal, 'hello\n');
  at = await terminal.printed(/read hello/, at);
  // The keeper resumes the front when the command goes on, and that discards a pending stop.
  await restingKeeperOf(front);
  signalLiving(front, 'SIGTSTP');
  at = await terminal.printed(/Stopped[\s\S]*\$ /, at);
  type(terminal, 'kill %1\n');
  await until(() => !isThere(front), 'the shell to collect the front');
  type(terminal, '\n'); // with a prompt it says how the job has ended
  at = await terminal.printed(/Exit 143|Terminated/, at);
  type(terminal, 'exit\n');
  await terminal.printed(/\[status/, at);
});

test('Ctrl-C ends a shell’s loop around gpu-owner', async () => {
  const { terminal } = await shell({ command: ['sh', '-c', 'echo running; exec sleep 60'] });
  type(terminal, 'for i in 1 2 3; do echo "round $i"; g; done; echo "co""de $?"\n');
  let at = await terminal.printed(/round 1[\r\n]+running/);
  type(terminal, CTRL_C);
  at = await terminal.printed(/\^C[\r\n]+.*\$ /, at);
  type(terminal, 'echo "last $?"\n');
  at = await terminal.printed(/last 130/, at);
  expect(terminal.stdout).not.toContain('round 2\r');
  type(terminal, 'exit\n');
  await terminal.printed(/\[status/, at);
});

test('Ctrl-\\ reaches the command once', async () => {
  const terminal = inTerminal([python, ...launcherArguments({ command: [python, fixture('signals.py')] })]);
  await terminal.printed(/ready \d+/);
  const command = Number(/ready (\d+)/.exec(terminal.stdout)?.[1]);
  type(terminal, CTRL_BACKSLASH);
  let at = await terminal.printed(/SIGQUIT/);
  type(terminal, CTRL_C);
  at = await terminal.printed(/SIGINT/, at);
  sendSignal(command, 'SIGKILL');
  await terminal.printed(/\[status 137\]/, at);
  expect(terminal.stdout.match(/SIG\w+/g)).toEqual(['SIGQUIT', 'SIGINT']);
});

test.each([true, false])(
  'the command gets SIGHUP when the terminal closes (front leads the session: %s)',
  async (leads) => {
    const { leases } = workspace();
    const command = [python, fixture('signals.py')];
    const args = launcherArguments({ leases, command });
    const terminal = leads
      ? inTerminal([python, ...args])
      : inTerminal([
          python,
          '-c',
          'import os, sys; os.fork() and os.wait(); os.execvp(sys.argv[1], sys.argv[1:])',
          python,
          ...args,
        ]);
    await terminal.printed(/ready \d+/);
    const pid = Number(/ready (\d+)/.exec(terminal.stdout)?.[1]);
    if (leads) {
      // The program's output is gone with the terminal, so it ends by the failure to print its input.
      terminal.child.stdin?.end();
      await probe.free(leases[0] as string);
      expect(isAlive(pid)).toBe(false);
    } else {
      terminal.kill('SIGKILL');
      await probe.free(leases[0] as string);
      expect(isAlive(pid)).toBe(false);
    }
  },
);
