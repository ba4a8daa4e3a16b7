import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { command, Machine } from './support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

test.each([
  'driverSnapshot', // used late
  'driverHasCallOut', // used when the process exits
  'Directory', // a class
])('the error for a native addon without %s names the addon and how to rebuild it', async (name) => {
  const hook = join(import.meta.dirname, 'fixtures/stale-addon.cjs');
  const { code, stdout, stderr } = await machine.run(
    [process.execPath, '-r', hook, command, 'run', '--', 'true'],
    { env: { STALE_WITHOUT: name } },
  );
  expect(stderr).toMatch(
    new RegExp(
      `^gpu-owner: the native addon at \\S+gpu_owner\\.node is from another version of gpu-owner: it has no ${name}\\(\\)\\. ` +
        'Install gpu-owner again; in a clone, run `npm run install`\\.\\n$',
    ),
  );
  expect({ code, stdout }).toEqual({ code: 69, stdout: '' });
});
