// Urgent requests, in whole processes of two users.
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { alice, bob, endHolder, RUN, startHolder, UNTIL_CLOSED } from '../support/holders.ts';
import { Machine, NOBODY, output, whyNotNobody } from '../support/machine.ts';
import { Waiters } from './waiters.ts';

const OTHER = bob.uid;
const noSecondUser = whyNotNobody();

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

describe.skipIf(noSecondUser !== null)(`urgent: ${noSecondUser ?? 'two users'}`, () => {
  test.each([['submit', ['submit', '--urgent', '--', 'true']]])(
    '%s --urgent of a user who may not make such requests ends with 77, and says who may',
    async (_, words) => {
      machine.configure(`urgent: { users: [${OTHER}], groups: ['54321'] }\n`);
      const { code, stderr } = await machine.runCommand(words, alice);
      expect(code).toBe(77);
      expect(stderr).toContain(`${OTHER} and the members of the group 54321 may`);
      machine.configure('order: fair\n');
      const nobody = await machine.runCommand(words, alice);
      expect(nobody.code).toBe(77);
      expect(nobody.stderr).toContain('only root may');
    },
  );

  test('a member of a named group, and root, may make urgent requests', async () => {
    machine.configure(`urgent: { groups: ['${NOBODY}'] }\n`);
    expect((await machine.runCommand([...RUN, '--urgent', '--', 'true'], alice)).code).toBe(0);
    expect((await machine.runCommand([...RUN, '--urgent', '--', 'true'])).code).toBe(0);
  });

  test('an urgent request is served before those that have waited longer', async () => {
    machine.configure(`urgent: { users: [${OTHER}] }\n`);
    const waiters = new Waiters(machine);
    const holder = await startHolder(machine, [], alice);
    const names = async () => (await waiters.queue()).map((entry) => [entry.name, entry.class]);
    const begin = async (count: number, starting: typeof alice, ...options: string[]) => {
      const child = machine.startCommand([...RUN, ...options, ...UNTIL_CLOSED], starting);
      await waiters.untilWaiting(count);
      return child;
    };
    // Alice has a GPU, so Bob's normal request would only come before hers.
    const children = [await begin(1, bob, '--name', 'normal'), await begin(2, alice, '--name', 'second')];
    const submitted = await machine.runCommand(['submit', '--urgent', '--name', 'job', '--', 'true'], bob);
    expect(submitted.code).toBe(0);
    await waiters.untilWaiting(3);
    const urgent = await begin(4, bob, '--name', 'urgent', '--urgent');
    expect(await names()).toEqual([
      ['job', 'urgent'],
      ['urgent', 'urgent'],
      ['normal', 'normal'],
      ['second', 'normal'],
    ]);
    holder.stdin?.end();
    await output(urgent, /^started/m);
    expect((await names()).map(([name]) => name)).toEqual(['normal', 'second']);
    for (const child of [urgent, ...children]) await endHolder(child);
  });
});
