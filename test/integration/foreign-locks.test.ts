// Locks on our files by programs that are no claims, as any user can take them: what status and claims say of them.
import { chmodSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  command,
  finished,
  Machine,
  NOBODY,
  output,
  python,
  type Starting,
  whyNotNobody,
} from '../support/machine.ts';

const noOtherUser = whyNotNobody();
const OTHER: Starting = noOtherUser === null ? { uid: NOBODY } : {};
/** One more, who may not look into the processes of the others. */
const THIRD: Starting = { uid: NOBODY - 1 };
const WHO = noOtherUser === null ? '(nobody|uid 65534)' : '\\S+';
const uuid = `GPU-00000000-0000-4000-8000-000000000000`;
const RUN = ['run', '--placeholder', 'none', '--no-wait', '--devices', '0', '--', 'echo', 'it ran'];
const KINDS = ['posix', 'ofd'];

let machine: Machine;
beforeEach(async () => {
  machine = new Machine(2);
  // The record is of a claim that has ended, and names a user who has nothing to do with what comes.
  const made = await machine.runCommand([
    'run',
    '--placeholder',
    'none',
    '-n',
    '2',
    '--',
    'echo',
    'an earlier claim',
  ]);
  expect(made.code).toBe(0);
});
afterEach(() => machine.close());

const file = (name: string) => join(machine.lockDirectory, name);

/** A lock as a program of another user takes it, with Python's fcntl. */
async function lock(name: string, kind: string, ...ranges: number[]) {
  const locker = join(import.meta.dirname, 'fixtures/locker.py');
  const child = machine.start([python, locker, file(name), kind, ...ranges.map(String)], OTHER);
  await output(child, /locked/);
  const ended = finished(child);
  return {
    pid: child.pid as number,
    end: () => {
      child.stdin?.end();
      return ended;
    },
  };
}

/** To be asked again where a holder must be named: a command searches all processes for half a second only. */
const firstGPU = async () => (await machine.status())[0];

describe.each(KINDS)(
  `a lock on a lease (%s)${noOtherUser === null ? '' : ` (as one user: ${noOtherUser})`}`,
  (kind) => {
    test('is reported as a foreign lock, and no user is named', async () => {
      const { pid, end } = await lock(`${uuid}.lease`, kind);
      const who = new RegExp(`python\\S* \\(pid ${pid}, ${WHO}\\), .*\`kill ${pid}\``);
      const lease = { pid, stranger: true };
      await expect
        .poll(firstGPU)
        .toMatchObject({ state: 'leased', lease, reason: expect.stringMatching(who) });
      const refused = async () => {
        const { code, stderr } = await machine.runCommand(RUN);
        expect(stderr).not.toContain('an earlier claim');
        return [code, stderr];
      };
      await expect.poll(refused).toEqual([75, expect.stringMatching(who)]);
      await end();
      expect((await machine.runCommand(RUN)).code).toBe(0);
    });

    test.skipIf(noOtherUser !== null)(
      'is told with the way to learn more where its process may not be looked into',
      async () => {
        const { pid } = await lock(`${uuid}.lease`, kind);
        const shown =
          kind === 'posix' ? `pid ${pid}` : `as root, \`fuser -v ${file(`${uuid}.lease`)}\` shows it`;
        const { stderr } = await machine.runCommand(RUN, THIRD);
        expect(stderr).toContain(shown);
        expect(stderr).not.toContain('an earlier claim');
        const { stdout } = await machine.runCommand(['status'], { ...THIRD, env: { COLUMNS: '500' } });
        expect(stdout).toContain(shown);
      },
    );
  },
);

/** The first unit of memory in a lease file. */
const UNIT = 2 ** 51;
const SHARE = ['run', '--memory', '1G', '--placeholder', 'none', '--no-wait', '--devices', '0', 'true'];

test('a lock on units of memory and the lease is a stranger’s, and no share', async () => {
  const { pid, end } = await lock(`${uuid}.lease`, 'ofd-read', 0, 1, UNIT, 1000);
  await expect.poll(firstGPU).toMatchObject({ state: 'leased', lease: { pid, stranger: true }, shares: [] });
  for (const words of [RUN, SHARE])
    await expect
      .poll(() => machine.runCommand(words))
      .toMatchObject({ code: 75, stderr: expect.stringContaining(`(pid ${pid}, `) });
  await end();
  expect((await machine.runCommand(SHARE)).code).toBe(0);
});

test('a GPU doesn’t look free with a lock on a nested lease', async () => {
  writeFileSync(file(`${uuid}.nested-1`), '');
  chmodSync(file(`${uuid}.nested-1`), 0o666);
  const { pid, end } = await lock(`${uuid}.nested-1`, 'posix');
  expect((await machine.status())[0]).toMatchObject({ state: 'leased', lease: { pid, stranger: true } });
  const { code, stderr } = await machine.runCommand(RUN);
  expect([code, stderr]).toEqual([75, expect.stringContaining(`(pid ${pid}, `)]);
  await end();
  expect((await machine.runCommand(RUN)).code).toBe(0);
});

test('a lock on the decision lock isn’t blamed on the claim that ended last', async () => {
  const { pid, end } = await lock('acquisition.lock', 'ofd', 0, 0);
  const { code, stderr } = await machine.runCommand(RUN);
  expect([code, stderr]).toEqual([
    0,
    expect.stringMatching(
      new RegExp(`warning: python\\S* \\(pid ${pid}, ${WHO}\\), which is not a gpu-owner claim`),
    ),
  ]);
  expect(stderr).not.toContain('an earlier claim');
  await end();
  expect(await machine.runCommand(RUN)).toMatchObject({ code: 0, stderr: '' });
});

test('a share is no stranger to any user, nor is one inside of a job', async () => {
  const share = ['run', '--memory', '2G', '--placeholder', 'none', '--'];
  const hold = [...share, 'sh', '-c', 'echo started; exec cat'];
  const inner = [process.execPath, command, ...share, 'sh', '-c', 'echo started; exec cat'];
  const whole = ['run', '--placeholder', 'none', '--devices', '1', '--', ...inner];
  const holders = [hold, [...share, ...inner], whole].map((words) => machine.startCommand(words));
  for (const holder of holders) await output(holder, /started/);
  for (const who of [{}, OTHER]) {
    const { stdout } = await machine.runCommand(['status'], { ...who, env: { COLUMNS: '500' } });
    expect(stdout).toMatch(
      /4 GiB of [\d.]+ GiB leased in shares by \S+\n.*2 GiB for .*\n.*2 GiB for .*\n.*1 /,
    );
    expect(stdout).toMatch(/leased by \S+ since .* run --memory 2G/);
  }
  for (const holder of holders) {
    holder.stdin?.end();
    await finished(holder);
  }
});
