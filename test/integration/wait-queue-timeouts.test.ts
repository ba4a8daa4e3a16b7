// Waits of seconds that nothing can shorten: they are waited for side by side, each on a machine of its own.
import { describe, type TestContext, test } from 'vitest';
import { finished, Machine, NOBODY, whyNotNobody } from '../support/machine.ts';
import { soakTest } from '../support/time.ts';
import { names, Waiters } from './waiters.ts';

function newWaiters({ onTestFinished }: TestContext): Waiters {
  const machine = new Machine(4);
  onTestFinished(() => machine.close());
  return new Waiters(machine);
}

describe.concurrent('waiters that others have to be patient with', () => {
  test('twenty suspended waiters delay others by seconds only', async (context) => {
    const { expect } = context;
    const waiters = newWaiters(context);
    const { release } = await waiters.holder(4);
    const stopped = Array.from({ length: 2 }, (_, i) =>
      waiters.waiter(Array.from({ length: 10 }, (_, j) => ({ name: `s${i}-${j}`, count: 1 + (j % 4) }))),
    );
    await waiters.untilWaiting(20);
    for (const child of stopped) child.kill('SIGSTOP');
    const last = waiters.waiter([{ name: 'last', count: 4 }]);
    const outcome = finished(last);
    await waiters.untilWaiting(21);
    const started = performance.now();
    release();
    expect(names((await outcome).stdout, 'got')).toEqual(['last']);
    expect(performance.now() - started).toBeLessThan(20_000);
    const entries = await waiters.queue();
    expect(entries.map(({ stopped }) => stopped)).toEqual(Array(20).fill(true));
    // Waiters that go on again get their GPUs.
    const outcomes = stopped.map((child) => finished(child));
    for (const child of stopped) child.kill('SIGCONT');
    const all = (await Promise.all(outcomes)).map(({ stdout }) => stdout).join('');
    expect(names(all, 'got')).toHaveLength(20);
    expect(all).not.toMatch(/violation/);
  });

  test('a single such waiter costs seconds, too, whether or not anybody has ever leased the GPU', async (context) => {
    const { expect } = context;
    const waiters = newWaiters(context);
    await waiters.machine.runCommand(['run', '--devices', '0', '--', 'true']); // GPU 1 has no lease file
    const [first, second] = waiters.machine.uuids() as [string, string];
    await waiters.fakeWaiter(1, [first], 'alive', 0);
    await waiters.fakeWaiter(1, [second], 'alive', 1);
    const outcomes = [0, 1].map((gpu) =>
      finished(waiters.waiter([{ name: `w${gpu}`, devices: [gpu], maxWait: 20_000 }])),
    );
    const texts = (await Promise.all(outcomes)).map(({ stdout }) => stdout).join('');
    expect(names(texts, 'got').sort()).toEqual(['w0', 'w1']);
  });

  soakTest(
    'a claim that doesn’t wait is met although an honest and a forged waiter who never take it could use the GPU',
    async (context) => {
      const { expect } = context;
      const waiters = newWaiters(context);
      await waiters.machine.runCommand(['run', '-n', '4', '--', 'true']); // makes the lock directory
      const all = waiters.machine.uuids();
      for (const place of [0, 1]) await waiters.fakeWaiter(1, all, 'alive', place);
      const { code, stdout, stderr } = await waiters.machine.runCommand([
        'run',
        '--no-wait',
        '--',
        'echo',
        'it ran',
      ]);
      expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'it ran\n', stderr: '' });
      const script =
        "const owner = new GPUOwner({ placeholder: 'none' }); console.log(owner.devices.length);";
      expect(await waiters.machine.runScript(script)).toMatchObject({ code: 0, stdout: '1\n' });
    },
  );

  test.skipIf(whyNotNobody() !== null)(
    'a wait queue that others can’t join, since a hostile user made it, keeps no GPU idle',
    async (context) => {
      const { expect } = context;
      const waiters = newWaiters(context);
      await waiters.machine.runCommand(['run', '-n', '4', '--', 'true']);
      await waiters.fakeWaiter(1, waiters.machine.uuids(), 'alive', 0, { uid: NOBODY, umask: '022' });
      const claimed = async (...args: string[]) =>
        (await waiters.machine.runCommand(['run', ...args, '--', 'echo', 'it ran'], { uid: NOBODY - 1 }))
          .stdout;
      expect(await Promise.all([claimed('--no-wait'), claimed('--wait=60s')])).toEqual([
        'it ran\n',
        'it ran\n',
      ]);
    },
  );
});
