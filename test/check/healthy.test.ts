// On a machine where all is well, nothing worse than "ok" is found: none of the findings that other tests provoke.
import { chmodSync, mkdirSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { diagnose, said } from '../support/doctor.ts';
import { finished, Machine, output } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

test('before the first claim the doctor finds nothing and makes nothing', async () => {
  const diagnosis = await diagnose(machine);
  expect(diagnosis).toMatchObject({ code: 0, ids: [], stderr: '' });
  expect(said(diagnosis, 'lock-directory')).toMatch(/locks .*doesn't exist yet. The first claim makes it/);
  expect(readdirSync(machine.directory)).not.toContain('no-configuration');
  expect(() => statSync(machine.lockDirectory)).toThrow(/ENOENT/);
});

test('while GPUs are leased the doctor says how many, and changes nothing', async () => {
  const holder = machine.startCommand(['hold', '-n', '3', '--placeholder', 'none']);
  const end = finished(holder);
  await output(holder, /visibleDevices/);
  expect((await diagnose(machine)).ids).toEqual([]); // by then the keeper has written its records
  const files = () =>
    readdirSync(machine.lockDirectory).map((name) => {
      const { mode, size, ino, mtimeMs } = statSync(join(machine.lockDirectory, name));
      return { name, mode, size, ino, mtimeMs };
    });
  const before = files();
  const diagnosis = await diagnose(machine);
  expect(diagnosis).toMatchObject({ code: 0, ids: [], stderr: '' });
  expect(said(diagnosis, 'leases')).toMatch(/^3 GPUs are leased/);
  expect(said(diagnosis, 'lock-directory')).toMatch(
    /the simulated machine's own.*mode 1777(, on \S+)?, .* free/,
  );
  expect(said(diagnosis, 'locks')).toMatch(/Locks work/);
  expect(files()).toEqual(before);
  expect(await machine.states()).toEqual(['leased', 'leased', 'leased', 'free']);
  holder.stdin?.end();
  expect((await end).code).toBe(0);
});

test('with a lock directory that is named, the doctor finds nothing either', async () => {
  const path = join(machine.directory, 'locks');
  mkdirSync(path);
  chmodSync(path, 0o1777);
  const { code, ids } = await diagnose(machine, { env: { GPU_OWNER_LOCK_DIR: path } });
  // In a container that is something to tell.
  expect({ code, ids: ids.filter((id) => id !== 'lock-directory-in-container') }).toEqual({
    code: 0,
    ids: [],
  });
});

test('the doctor tells what is healthy', async () => {
  const { findings } = await diagnose(machine);
  const ids = findings.map(({ id }) => id);
  for (const id of ['version', 'driver', 'gpus', 'cuda-library', 'lock-directory', 'configuration']) {
    expect(ids).toContain(id);
  }
});
