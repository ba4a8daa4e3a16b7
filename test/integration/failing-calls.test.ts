import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { command, Machine, NOBODY, whyNotNobody } from '../support/machine.ts';
import { whyNoTracing } from '../support/processes.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine('2');
});
afterEach(() => machine.close());

const RUN = [process.execPath, command, 'run', '-n', '1', '--', 'echo', 'ran'];

test('too few open files end in a sentence that names the limit, never in a stack trace', async () => {
  await machine.run(RUN);
  const said: string[] = [];
  for (let files = 18; files < 40; files += 5) {
    const { code, stderr } = await machine.run([
      'sh',
      '-c',
      'ulimit -n "$0" && exec "$@"',
      String(files),
      ...RUN,
    ]);
    // Node.js itself needs some, and says so in its own way.
    if (/Assertion failed|open '[^']*gpu-owner.cjs'/.test(stderr) || code === null) continue;
    expect({ files, stderr }).not.toMatchObject({
      stderr: expect.stringMatching(/\n {4}at |ERR_NO_DRIVER|no NVIDIA driver found/),
    });
    if (code !== 0) said.push(stderr);
  }
  expect(said.filter((text) => /too many open files.*ulimit -n/i.test(text)).length).toBeGreaterThan(0);
});

test.skipIf(whyNotNobody())(
  'a limit on threads is not taken for a driver that hangs [needs root]',
  async () => {
    const limited = async (processes: number) => {
      const words = ['prlimit', `--nproc=${processes}`, process.execPath, command, 'status'];
      return machine.run(words, { uid: NOBODY - 7 });
    };
    // Node.js starts threads of its own, whose number depends on the machine; the one that asks the driver comes last.
    let processes = 24;
    let outcome = await limited(processes);
    while (outcome.code === 0 && processes > 0) outcome = await limited(--processes);
    expect(outcome.stderr).toMatch(/no thread can be started: .*ulimit -u/);
    expect(outcome.code).toBe(69);
  },
);

describe.skipIf(whyNoTracing() !== null)('calls that fail on the disk [needs strace]', () => {
  /** Runs a job in which calls on a path fail. */
  const failing = (path: string, calls: string, error: string) =>
    machine.run([
      ...['strace', '-f', '-qq', '-o', '/dev/null', '-P', path],
      ...['-e', `trace=${calls}`, '-e', `inject=${calls}:error=${error}`, ...RUN],
    ]);
  beforeEach(async () => {
    expect(await machine.run(RUN)).toMatchObject({ code: 0 });
  });

  test('a read of the decision lock that fails ends no claim', async () => {
    const path = `${machine.lockDirectory}/acquisition.lock`;
    for (const [error, text] of [
      ['EIO', 'i/o error'],
      ['EINTR', 'interrupted system call'],
    ]) {
      const { code, stdout, stderr } = await failing(path, 'read,pread64', error as string);
      expect({ error, code, stdout }).toEqual({ error, code: 0, stdout: 'ran\n' });
      expect(stderr).toBe(
        text === ''
          ? ''
          : `gpu-owner: warning: ${path} can't be read: ${text}. This process goes on without what is in it.\n`,
      );
    }
  });

  test('EIO of the status of a lock directory that exists does not say that it is to be made', async () => {
    const { code, stderr } = await failing(machine.lockDirectory, 'fstat,newfstatat', 'EIO');
    expect(code).toBe(73);
    expect(stderr).toContain(`the lock directory ${machine.lockDirectory} can't be used: i/o error`);
  });
});
