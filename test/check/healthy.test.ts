// On a machine where all is well, nothing worse than "ok" is found: none of the findings that other tests provoke.
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { CATALOGUE } from '../../lib/check/finding.ts';
import { diagnose, said } from '../support/doctor.ts';
import { finished, Machine, output, root } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

test('before the first claim the doctor tells what is healthy, and makes nothing', async () => {
  const diagnosis = await diagnose(machine);
  expect(diagnosis).toMatchObject({ code: 0, ids: [], stderr: '' });
  const healthy = Object.keys(CATALOGUE).filter((id) => CATALOGUE[id as keyof typeof CATALOGUE] === 'ok');
  const ids = diagnosis.findings.map(({ id }) => id);
  expect(ids.filter((id) => healthy.includes(id))).toEqual(healthy);
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  expect(said(diagnosis, 'version')).toContain(
    `gpu-owner ${version} in ${root}, Node.js ${process.versions.node} (${process.execPath})`,
  );
  expect(said(diagnosis, 'simulated')).toMatch(/machine '4'.*unset GPU_OWNER_SIMULATE/);
  expect(said(diagnosis, 'configuration')).toMatch(/^No configuration file/);
  expect(said(diagnosis, 'lock-directory')).toMatch(/locks .*doesn't exist yet. The first claim makes it/);
  expect(said(diagnosis, 'driver')).toMatch(
    /^NVIDIA driver \d+\.\d+\S*, CUDA \d+\.\d: \/.*\/simulator\/libnvidia-ml\.so\.1 and \/.*\/simulator\/libcuda\.so\.1\. /,
  );
  expect(said(diagnosis, 'gpus')).toMatch(/^GPUs 0, 1, 2 and 3: 4 × Simulated GPU\. All answer\./);
  expect(said(diagnosis, 'cuda')).toMatch(/^CUDA starts on GPUs 0, 1, 2 and 3\./);
  expect(() => statSync(machine.lockDirectory)).toThrow(/ENOENT/);
});

test('while GPUs are leased the doctor finds nothing either, and changes nothing', async () => {
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
  expect(said(diagnosis, 'lock-directory')).toMatch(
    /the simulated machine's own.*mode 1777(, on \S+)?, .* free/,
  );
  expect(files()).toEqual(before);
  expect(await machine.states()).toEqual(['leased', 'leased', 'leased', 'free']);
  holder.stdin?.end();
  expect((await end).code).toBe(0);
});
