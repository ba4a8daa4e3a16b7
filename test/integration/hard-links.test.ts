// Second names (hard links) of lock files, as another user or a backup with `cp -al` makes them, and lock files that are second
// names of a user's own file.
import { chmodSync, chownSync, linkSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  command,
  finished,
  Machine,
  NOBODY,
  output,
  type Starting,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';
import { names, Waiters } from './waiters.ts';

const noOtherUser = whyNotNobody();
const OTHER: Starting = noOtherUser === null ? { uid: NOBODY } : {};
const RUN = ['run', '--placeholder', 'none', '--no-wait'];

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

const file = (name: string) => join(machine.lockDirectory, name);

/** Gives a file another name, as its owner may, and everybody who may write to it. */
function backUp(name: string): string {
  const backup = join(machine.directory, `backup-of-${name}`);
  linkSync(file(name), backup);
  return backup;
}

/** Holds GPUs; resolves when it does. */
async function hold(on: Machine, args: string[], starting: Starting = {}) {
  const child = on.startCommand(['hold', '--placeholder', 'none', ...args], starting);
  await output(child, /visibleDevices/);
  const ended = new Promise((resolve) => child.once('exit', resolve));
  return {
    pid: child.pid as number,
    release: () => {
      child.stdin?.end();
      return ended;
    },
  };
}

describe(`a lock file with a second name${noOtherUser === null ? '' : ` (as one user: ${noOtherUser})`}`, () => {
  test('a lease that is held stays held, for everybody', async () => {
    const holder = await hold(machine, ['--devices', '0'], OTHER);
    backUp(`${uuidOf(0)}.lease`);
    expect(await machine.states()).toEqual(['leased', 'free']);
    const { code, stderr } = await machine.runCommand([...RUN, '--devices', '0', '--', 'true']);
    expect([code, stderr]).toEqual([75, expect.stringContaining(`pid ${holder.pid}`)]);
    await holder.release();
    // And the next one can have it, and be seen to have it.
    const next = await hold(machine, ['--devices', '0']);
    expect((await machine.status())[0]).toMatchObject({ state: 'leased', lease: { pid: next.pid } });
    await next.release();
    expect(await machine.states()).toEqual(['free', 'free']);
  });

  test('the wait queue keeps its order, for requests that are in it and those that come', async () => {
    machine.configure('order: fifo\n'); // a user's second request would come behind others
    const waiters = new Waiters(machine);
    const holder = await hold(machine, ['-n', '2']);
    const started = [waiters.waiter([{ name: 'w0', count: 2, hold: 100 }])];
    await waiters.untilWaiting(1);
    backUp('line.lock');
    for (const name of ['w1', 'w2']) {
      started.push(waiters.waiter([{ name, count: 2, hold: 100 }], OTHER));
      await waiters.untilWaiting(started.length);
    }
    expect((await waiters.queue()).map(({ count, stopped }) => [count, stopped])).toEqual(
      Array(3).fill([2, false]),
    );
    const outcomes = started.map((waiter) => finished(waiter));
    await holder.release();
    const all = await Promise.all(outcomes);
    const times = all.map(({ stdout }) => Number(/^got \S+ \S+ (\S+)/m.exec(stdout)?.[1]));
    expect(times).toEqual([...times].sort((a, b) => a - b));
    expect(all.map(({ stderr }) => stderr)).toEqual(['', '', '']);
    expect(all.flatMap(({ stdout }) => names(stdout, 'got'))).toEqual(['w0', 'w1', 'w2']);
  });
});

const FILES = [[`${uuidOf(0)}.lease`], [`${uuidOf(0)}.nested-1`, 'line.lock', 'acquisition.lock']];
const SOAK = process.env.GPU_OWNER_SOAK !== undefined;
const MODES = SOAK ? [0o600, 0o666] : [0o666];

describe.each(FILES)("somebody's own file in place of %s and others", (...files) => {
  const CONTENT = 'precious\n'.repeat(1000);

  /** Root's file, as a user may link it where the kernel doesn't forbid that (fs.protected_hardlinks). */
  function plant(mode: number): string {
    const victim = join(machine.directory, 'victim');
    writeFileSync(victim, CONTENT);
    chmodSync(victim, mode);
    mkdirSync(machine.lockDirectory, { recursive: true });
    chmodSync(machine.lockDirectory, 0o1777);
    for (const name of files) linkSync(victim, file(name));
    return victim;
  }

  /** Claims at once, inside a job, and after a wait. */
  async function claimAll(): Promise<void> {
    const go = `${process.execPath} ${command}`;
    const inside = ['sh', '-c', `${go} run --placeholder none -- true; true`];
    for (const starting of SOAK ? [{}, OTHER] : [OTHER])
      await machine.runCommand([...RUN, '--devices', '0', '--', ...inside], starting);
    const waiting = ['run', '--placeholder', 'none', '--devices', '0', '--wait=1s', '--', 'true'];
    await machine.runCommand(waiting);
  }

  test.each(MODES)('stays as it is, with mode %i', async (mode) => {
    const victim = plant(mode);
    const holder = await hold(machine, ['--devices', '1']);
    const queued = machine.startCommand(['run', '--placeholder', 'none', '--devices', '1', '--', 'true']);
    await claimAll();
    const status = await machine.runCommand(['status'], OTHER);
    expect(status).toMatchObject({ code: 0, stderr: '' });
    await holder.release();
    expect((await finished(queued)).code).toBe(0);
    expect(readFileSync(victim, 'utf8')).toBe(CONTENT);
    expect(statSync(victim).mode & 0o7777).toBe(mode);
    expect(statSync(victim).nlink).toBe(1 + files.length);
  });
});

describe('what a claim says of a lease file that may be somebody’s own', () => {
  test('the error says that the GPU can’t be claimed, why, and what to do', async () => {
    const victim = join(machine.directory, 'victim');
    writeFileSync(victim, 'precious');
    chmodSync(victim, 0o600);
    if (noOtherUser === null) chownSync(victim, NOBODY, NOBODY);
    mkdirSync(machine.lockDirectory, { recursive: true });
    chmodSync(machine.lockDirectory, 0o1777);
    linkSync(victim, file(`${uuidOf(0)}.lease`));
    const { code, stderr } = await machine.runCommand([...RUN, '--devices', '0', '--', 'true']);
    expect(code).toBe(73);
    expect(stderr).toMatch(
      /lease has 2 names \(hard links\) and mode 0600 \(it belongs to \S+\): it may be a private file that somebody linked there\. As root, `find \S+ -xdev -samefile .*\.lease` lists the names\. If it is a lock file, `chmod 0666 \S+`; if not, remove it\./,
    );
    // The other GPU is there for everybody.
    expect((await machine.runCommand([...RUN, '--', 'true'])).code).toBe(0);
  });
});
