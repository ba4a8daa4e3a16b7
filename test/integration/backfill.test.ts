import { afterEach, beforeEach, expect, test } from 'vitest';
import { alice, RUN, startHolder } from '../support/holders.ts';
import { finished, Machine, until, whyNotNobody } from '../support/machine.ts';
import { nameOf } from '../support/processes.ts';
import { timeoutMs, withTimeouts } from '../support/time.ts';
import { Waiters } from './waiters.ts';

let machine: Machine;
let waiters: Waiters;
beforeEach(() => {
  machine = new Machine(4);
  waiters = new Waiters(machine);
});
afterEach(() => machine.close());

const holder = (...options: string[]) => startHolder(machine, options);

test('GPUs that are kept for a large request may be used until it can start, by requests with a time limit', async () => {
  await holder('-n', '2', '--for', '4h');
  const large = machine.startCommand([...RUN, '-n', '4', '--', 'true']);
  await waiters.untilWaiting(1);
  machine.startCommand([...RUN, '--', 'true']);
  await waiters.untilWaiting(2);
  machine.startCommand([...RUN, '--for', '5h', '--', 'true']);
  await waiters.untilWaiting(3);
  machine.startCommand([...RUN, '--memory', '10GiB', '--', 'true']);
  await waiters.untilWaiting(4);
  machine.startCommand(['hold', '--wait']);
  await waiters.untilWaiting(5);
  const entries = await waiters.queue();
  expect(entries.map(({ details }: { details: string[] }) => details)).toEqual([
    [],
    ['with --for 3h it could start now'],
    ['with --for 3h it could start now'],
    [], // shares can't use them
    [], // `hold` has no --for
  ]);
  const { latestStart } = entries[0];
  // At once, and without a wait.
  expect((await machine.runCommand([...RUN, '-n', '2', '--for', '1h', '--', 'true'])).code).toBe(0);
  const guest = await holder('--no-wait', '--for', '3h');
  expect((await machine.runCommand([...RUN, '-n', '2', '--no-wait', '--for', '1h', '--', 'true'])).code).toBe(
    75,
  );
  expect((await waiters.queue())[0].latestStart).toBe(latestStart);
  guest.stdin?.end();
  expect(large.exitCode).toBeNull();
});

test('without a limit of the leases that it waits for, nobody knows when a request starts', async () => {
  const endless = await holder('-n', '2');
  const large = finished(machine.startCommand([...RUN, '-n', '4', '--', 'true']));
  await waiters.untilWaiting(1);
  expect((await machine.runCommand([...RUN, '--no-wait', '--for', '1s', '--', 'true'])).code).toBe(75);
  endless.stdin?.end();
  expect((await large).code).toBe(0);
});

test('a request that waits already is served when a GPU comes free that is kept for longer than it needs', async () => {
  await holder('-n', '3', '--for', '4h');
  const last = await holder();
  machine.startCommand([...RUN, '-n', '4', '--', 'true']);
  await waiters.untilWaiting(1);
  const short = finished(machine.startCommand([...RUN, '--for', '1h', '--', 'true']));
  await waiters.untilWaiting(2);
  last.stdin?.end();
  expect((await short).code).toBe(0);
  await waiters.untilWaiting(1);
});

test.skipIf(whyNotNobody() !== null).each([
  ['a share', 'order: fifo\n', ['--memory', '10GiB']],
  ['more GPUs than its user may have', 'order: fifo\nlimits: { gpus: 1 }\n', []],
])(
  'a request that kept GPUs can’t be lent to waits in the small process: %s',
  async (_, configuration, options) => {
    machine.configure(configuration);
    await holder('-n', '2', '--for', '4h');
    await startHolder(machine, ['--for', '4h'], alice);
    // So many, that the one behind doesn't look by itself.
    for (let i = 1; i <= 4; i++) {
      machine.startCommand([...RUN, '-n', '4', '--', 'true']);
      await waiters.untilWaiting(i);
    }
    const env = withTimeouts({ handoverBehind: timeoutMs('handoverBehind', 300) });
    const words = ['submit', '--placeholder', 'none', '--for', '1h', ...options, '--', 'true'];
    expect((await machine.runCommand(words, { ...alice, env })).code).toBe(0);
    await waiters.untilWaiting(5);
    const { pid } = (await waiters.queue())[4];
    await until(() => nameOf(pid) === 'gpu-owner-wait');
  },
);
