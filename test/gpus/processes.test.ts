import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { describeProcess, nameIn, userName } from '../../lib/platform/processes.ts';
import { python } from '../support/machine.ts';
import { processState } from '../support/processes.ts';

describe('describeProcess', () => {
  const children: ChildProcess[] = [];
  afterEach(() => {
    for (const child of children.splice(0)) child.kill('SIGKILL');
  });

  function start(command: string, args: string[]): ChildProcess {
    const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    children.push(child);
    return child;
  }

  function firstLine(child: ChildProcess): Promise<string> {
    return new Promise((resolve) => child.stdout?.once('data', (chunk) => resolve(String(chunk).trim())));
  }

  it('tells who a living process is', () => {
    const { name, user, uid, alive } = describeProcess(process.pid);
    expect(alive).toBe('alive');
    expect(uid).toBe(process.geteuid?.());
    expect(user).toBe(userInfo().username);
    expect(name).toBeTruthy();
  });

  it('names a program, not its main thread: Node.js 24 and 26 call that MainThread', async () => {
    for (const thread of ['MainThread', 'node-MainThread']) {
      const named = `import ctypes; ctypes.CDLL(None).prctl(15, b"${thread}"); print("named", flush=True); input()`;
      const child = start(python, ['-c', named]);
      await firstLine(child);
      expect(describeProcess(child.pid as number).name).toBe('python3');
    }
  });

  it('calls a zombie “dying”', async () => {
    // The child ends when the shell, replaced by sleep, doesn't reap it any longer.
    const shell = start('sh', ['-c', 'sleep 0.5 & echo $!; exec sleep 60']);
    const zombie = Number(await firstLine(shell));
    await expect.poll(() => describeProcess(zombie).alive).toBe('dying');
  });

  it('calls a process “gone” that has ended', async () => {
    const child = start('true', []);
    await new Promise((resolve) => child.once('exit', resolve));
    expect(describeProcess(child.pid ?? 0)).toEqual({ name: null, user: null, uid: null, alive: 'gone' });
  });

  it('calls no absurd PID alive', () => {
    for (const pid of [0, -1, 1.5, Number.NaN, 2 ** 31, 2 ** 60, Number.POSITIVE_INFINITY]) {
      expect(describeProcess(pid).alive).toBe('gone');
    }
  });

  it("calls a process with a hidden /proc entry alive, though it can't tell who it is", () => {
    const empty = mkdtempSync(join(tmpdir(), 'proc-'));
    try {
      expect(describeProcess(process.pid, empty)).toEqual({
        name: null,
        user: null,
        uid: null,
        alive: 'alive',
      });
    } finally {
      rmSync(empty, { recursive: true });
    }
  });

  it('calls a process whose main thread alone has ended alive', async (context) => {
    const program = `
import ctypes, os, threading, time
os.write(1, b'%d\\n' % os.getpid())
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
`;
    let child: ChildProcess;
    try {
      child = start('python3', ['-c', program]);
      await new Promise((resolve, reject) => child.once('spawn', () => resolve(null)).once('error', reject));
    } catch {
      return context.skip();
    }
    const pid = Number(await firstLine(child));
    await expect.poll(() => processState(pid), { timeout: 20_000 }).toBe('Z');
    expect(describeProcess(pid).alive).toBe('alive');
  });

  describe('from /proc', () => {
    let proc: string;
    beforeEach(() => {
      proc = mkdtempSync(join(tmpdir(), 'proc-'));
    });
    afterEach(() => rmSync(proc, { recursive: true }));

    const stat = (name: string, state = 'S', flags = 4194304, threads = 1) =>
      `77 (${name}) ${state} 1 77 77 0 -1 ${flags} 0 0 0 0 0 0 0 0 20 0 ${threads} 0 100\n`;
    const status = (pending = '0000000000000000', shared = '0000000000000000', extra = '') =>
      `Name:\tx\n${extra}Uid:\t1234567\t1234568\t1\t1\nSigPnd:\t${pending}\nShdPnd:\t${shared}\n`;
    function describeFake(
      statText: string,
      statusText: string,
      threads: Record<string, [string, string]> = {},
    ) {
      mkdirSync(join(proc, '77'));
      writeFileSync(join(proc, '77/stat'), statText);
      writeFileSync(join(proc, '77/status'), statusText);
      for (const [id, [threadStat, threadStatus]] of Object.entries(threads)) {
        mkdirSync(join(proc, '77/task', id), { recursive: true });
        writeFileSync(join(proc, '77/task', id, 'stat'), threadStat);
        writeFileSync(join(proc, '77/task', id, 'status'), threadStatus);
      }
      return describeProcess(77, proc);
    }

    it.each([
      ['a zombie', stat('x', 'Z'), status(), 'dying'],
      ['a dead one', stat('x', 'X'), status(), 'dying'],
      ['one that is exiting', stat('x', 'D', 0x400004), status(), 'dying'],
      ['one with SIGKILL pending', stat('x', 'D'), status('0000000000000100'), 'dying'],
      [
        'one with SIGKILL pending for all threads',
        stat('x', 'D'),
        status(undefined, '0000000000000100'),
        'dying',
      ],
      ['one that dumps core', stat('x', 'D'), status(undefined, undefined, 'CoreDumping:\t1\n'), 'dying'],
      [
        'one with other signals pending',
        stat('x', 'T'),
        status('fffffffffffffeff', '0000000000004002'),
        'alive',
      ],
      ['one in a driver call', stat('x', 'D'), status(undefined, undefined, 'CoreDumping:\t0\n'), 'alive'],
      ['a stopped one', stat('x', 'T'), status(), 'alive'],
      ['one that is called like a zombie', stat('x) Z 1 ('), status(), 'alive'],
    ])('tells whether %s is alive', (_, statText, statusText, expected) => {
      expect(describeFake(statText, statusText).alive).toBe(expected);
    });

    it('calls a killed process with many threads dying, and one with a living thread alive', () => {
      const killed: [string, string] = [stat('t', 'S'), status('0000000000000100')];
      expect(
        describeFake(stat('x', 'Z', 4, 3), status(), {
          77: [stat('x', 'Z'), status()],
          78: killed,
          79: killed,
        }).alive,
      ).toBe('dying');
      rmSync(join(proc, '77'), { recursive: true });
      const living: [string, string] = [stat('t', 'S'), status()];
      expect(
        describeFake(stat('x', 'Z', 4, 3), status(), {
          77: [stat('x', 'Z'), status()],
          78: killed,
          79: living,
        }).alive,
      ).toBe('alive');
    });

    it('makes a hostile name harmless', () => {
      const { name, user, uid } = describeFake(stat('\x1b[2Jev)il (\n'), status());
      expect(name).toBe('ev)il (');
      expect(uid).toBe(1234568);
      expect(user).toBe('uid 1234568');
    });

    it('survives rubbish', () => {
      expect(describeFake('rubbish', 'rubbish').alive).toMatch(/alive|gone/);
    });
  });
});

describe('user names', () => {
  it('come from the account file, harmless, the first for a uid', () => {
    const text =
      'root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n#x:x:5:5:\n\nbad\nev\x1b[2Jil:x:7:8:9::9:\nneg:x:-1:1::/:\n+::::::\n::6:6::/:\nno::70:7::/:\n';
    const names = [0, 1, 5, 6, 7, 8, 9, 70].map((uid) => nameIn(text, uid));
    expect(names).toEqual(['root', null, null, null, 'evil', null, null, 'no']);
  });

  it('fall back to the number', () => {
    expect(userName(3999999999)).toBe('uid 3999999999');
    expect(userName(0)).toBe('root');
  });
});
