// Anybody can write to the files in the lock directory: what stands there must not stop anybody else's commands.
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { finished, Machine, output } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

test('records whose objects have no methods stop no command', async () => {
  const holder = machine.startCommand(['hold', '--placeholder=none']);
  await output(holder, /visibleDevices/);
  const odd = { toString: 1, valueOf: 1 };
  const fields = [
    'generation',
    'uid',
    'user',
    'pid',
    'since',
    'granted',
    'handedOver',
    'refused',
    'survivors',
  ];
  const record = JSON.stringify(Object.fromEntries(fields.map((field) => [field, odd])));
  const files = readdirSync(machine.lockDirectory).filter((name) =>
    /^acquisition\.lock$|\.lease$/.test(name),
  );
  expect(files.length).toBeGreaterThan(1);
  for (const name of files)
    writeFileSync(join(machine.lockDirectory, name), record.padEnd(4000), {
      flag: existsSync(join(machine.lockDirectory, name)) ? 'r+' : 'w',
    });
  const run = (...options: string[]) => ['run', '--placeholder=none', ...options, '--', 'true'];
  const commands: [number, string[]][] = [
    [0, ['status']],
    [0, ['find']],
    [0, ['jobs']],
    [0, ['metrics']],
    [75, run('--no-wait', '-n', '2')],
    [0, run('--no-wait')],
  ];
  for (const [code, words] of commands)
    expect([words, await machine.runCommand(words)]).toMatchObject([words, { code }]);
  holder.stdin?.end();
  await finished(holder);
});
