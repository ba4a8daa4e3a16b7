import { afterEach, beforeEach, expect, test } from 'vitest';
import { finished, Machine, output, until } from '../support/machine.ts';

const RUN = ['run', '--placeholder', 'none'];
const UNTIL_CLOSED = ['--', 'sh', '-c', 'echo started; exec cat'];

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

const queue = async () => JSON.parse((await machine.runCommand(['queue', '--json'])).stdout);
const untilWaiting = (count: number) => until(async () => (await queue()).length === count);

async function holder(...options: string[]) {
  const child = machine.startCommand([...RUN, ...options, ...UNTIL_CLOSED]);
  await output(child, /started/);
  return child;
}

test('GPUs that are kept for a large request may be used until it can start, by requests with a time limit', async () => {
  await holder('-n', '2', '--for', '4h');
  const large = machine.startCommand([...RUN, '-n', '4', '--', 'true']);
  await untilWaiting(1);
  machine.startCommand([...RUN, '--', 'true']);
  await untilWaiting(2);
  machine.startCommand([...RUN, '--for', '5h', '--', 'true']);
  await untilWaiting(3);
  const entries = await queue();
  expect(entries.map(({ reason }: { reason: string | null }) => reason)).toEqual([
    null,
    'with --for 3h it could start now',
    'with --for 3h it could start now',
  ]);
  const { latestStart } = entries[0];
  // At once, and without a wait.
  expect((await machine.runCommand([...RUN, '-n', '2', '--for', '1h', '--', 'true'])).code).toBe(0);
  const guest = await holder('--no-wait', '--for', '3h');
  expect((await machine.runCommand([...RUN, '-n', '2', '--no-wait', '--for', '1h', '--', 'true'])).code).toBe(
    75,
  );
  expect((await queue())[0].latestStart).toBe(latestStart);
  guest.stdin?.end();
  expect(large.exitCode).toBeNull();
});

test('without a limit of the leases that it waits for, nobody knows when a request starts', async () => {
  const endless = await holder('-n', '2');
  const large = finished(machine.startCommand([...RUN, '-n', '4', '--', 'true']));
  await untilWaiting(1);
  expect((await machine.runCommand([...RUN, '--no-wait', '--for', '1s', '--', 'true'])).code).toBe(75);
  endless.stdin?.end();
  expect((await large).code).toBe(0);
});

test('a request that waits already is served when a GPU comes free that is kept for longer than it needs', async () => {
  await holder('-n', '3', '--for', '4h');
  const last = await holder();
  machine.startCommand([...RUN, '-n', '4', '--', 'true']);
  await untilWaiting(1);
  const short = finished(machine.startCommand([...RUN, '--for', '1h', '--', 'true']));
  await untilWaiting(2);
  last.stdin?.end();
  expect((await short).code).toBe(0);
  await untilWaiting(1);
});
