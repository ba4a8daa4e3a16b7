// Waits of seconds that nothing can shorten: they are waited for side by side, each on a machine of its own.
import { describe, type TestContext, test } from 'vitest';
import { finished, Machine, pause } from '../machine.ts';
import { Line, names } from './line.ts';

function newLine({ onTestFinished }: TestContext): Line {
  const machine = new Machine(4);
  onTestFinished(() => machine.close());
  return new Line(machine);
}

describe.concurrent('waiters that others have to be patient with', () => {
  test('fifty stopped waiters cost seconds', async (context) => {
    const { expect } = context;
    const line = newLine(context);
    const { release } = await line.holder(4);
    const stopped = Array.from({ length: 5 }, (_, i) =>
      line.waiter(Array.from({ length: 10 }, (_, j) => ({ name: `s${i}-${j}`, count: 1 + (j % 4) }))),
    );
    await line.untilWaiting(50);
    for (const child of stopped) child.kill('SIGSTOP');
    const last = line.waiter([{ name: 'last', count: 4 }]);
    const outcome = finished(last);
    await line.untilWaiting(51);
    const started = performance.now();
    release();
    expect(names((await outcome).stdout, 'got')).toEqual(['last']);
    expect(performance.now() - started).toBeLessThan(20_000);
    const entries = await line.queue();
    expect(entries.map(({ stopped }) => stopped)).toEqual(Array(50).fill(true));
    // Those that go on again get what they waited for.
    const outcomes = stopped.map((child) => finished(child));
    for (const child of stopped) child.kill('SIGCONT');
    const all = (await Promise.all(outcomes)).map(({ stdout }) => stdout).join('');
    expect(names(all, 'got')).toHaveLength(50);
    expect(all).not.toMatch(/violation/);
  });

  test('fifty that live but never take what they could cost seconds, too', async (context) => {
    const { expect } = context;
    const line = newLine(context);
    await line.machine.runCommand(['run', '--', 'true']); // makes the lock directory
    const all = await line.uuids();
    for (let place = 0; place < 50; place++) await line.fakeWaiter(1, all, 'alive', place);
    const started = performance.now();
    const { stdout } = await finished(line.waiter([{ name: 'last', count: 2 }]));
    expect(names(stdout, 'got')).toEqual(['last']);
    expect(performance.now() - started).toBeLessThan(40_000);
  });

  test('a single one, too, whether or not anybody has ever leased the GPU', async (context) => {
    const { expect } = context;
    const line = newLine(context);
    await line.machine.runCommand(['run', '--devices', '0', '--', 'true']); // GPU 1 has no lease file
    const [first, second] = (await line.uuids()) as [string, string];
    await line.fakeWaiter(1, [first], 'alive', 0);
    await line.fakeWaiter(1, [second], 'alive', 1);
    const outcomes = [0, 1].map((gpu) =>
      finished(line.waiter([{ name: `w${gpu}`, devices: [gpu], maxWait: 20_000 }])),
    );
    const texts = (await Promise.all(outcomes)).map(({ stdout }) => stdout).join('');
    expect(names(texts, 'got').sort()).toEqual(['w0', 'w1']);
  });

  test('a GPU that is silent and hasn’t told its UUID ends nobody’s wait', async (context) => {
    const { expect } = context;
    const line = newLine(context);
    const { release } = await line.holder(4);
    line.machine.set('gpu=0', 'hang=all');
    const outcomes = [];
    for (let i = 0; i < 2; i++) {
      outcomes.push(finished(line.waiter([{ name: `w${i}`, count: 1 }])));
      await line.untilWaiting(i + 1);
    }
    await pause(500);
    line.machine.set('gpu=0', 'hang=off');
    release();
    const all = (await Promise.all(outcomes)).map(({ stdout }) => stdout).join('');
    expect(names(all, 'got').sort()).toEqual(['w0', 'w1']);
  });

  test('a waiter for more than is free is not passed over', async (context) => {
    const { expect } = context;
    const line = newLine(context);
    const { release } = await line.holder(1);
    const large = finished(line.waiter([{ name: 'large', count: 4 }]));
    await line.untilWaiting(1);
    const small = await finished(line.waiter([{ name: 'small', maxWait: 5_000 }]));
    expect(small.stdout).toBe('failed small ERR_TIMEOUT\n');
    release();
    expect(names((await large).stdout, 'got')).toEqual(['large']);
  });
});
