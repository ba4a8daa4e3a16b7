import { afterEach, beforeEach, expect, test } from 'vitest';
import { RUN, startHolder } from '../support/holders.ts';
import { finished, Machine } from '../support/machine.ts';
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
  const [{ latestStart }] = await waiters.queue();
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
