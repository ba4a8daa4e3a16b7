import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { whichContainer } from '../../lib/gpus/containers.ts';
import { notLoaded } from '../../lib/gpus/driver.ts';
import { native } from '../../lib/native.ts';
import { binaries } from '../support/binaries.ts';
import { diagnose, diagnosePart, said } from '../support/doctor.ts';
import { Machine } from '../support/machine.ts';

const simulated = (name: string) => join(binaries(), 'simulator', name);

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

test('the doctor shows version and path of the driver’s library that was really loaded', async () => {
  const diagnosis = await diagnose(machine);
  expect(said(diagnosis, 'driver')).toMatch(
    /^NVIDIA driver \d+\.\d+.*, \/.*\/simulator\/libnvidia-ml\.so\.1\. /,
  );
  expect(said(diagnosis, 'cuda-library')).toMatch(/^CUDA \d+\.\d, \/.*\/simulator\/libcuda\.so\.1\. /);
});

test('of a library that the linker searches, the doctor shows the file, not the name that was asked for', async () => {
  const directory = join(machine.directory, 'libraries');
  mkdirSync(directory);
  copyFileSync(simulated('libnvidia-ml.so.1'), join(directory, 'libnvidia-ml.so.1'));
  copyFileSync(simulated('libcuda.so.1'), join(directory, 'libcuda.so.1'));
  const diagnosis = await diagnosePart(machine, 'driver', {
    env: {
      LD_LIBRARY_PATH: directory,
      GPU_OWNER_NVML_LIBRARY: 'libnvidia-ml.so.1',
      GPU_OWNER_CUDA_LIBRARY: 'libcuda.so.1',
    },
  });
  expect(said(diagnosis, 'driver')).toContain(join(directory, 'libnvidia-ml.so.1'));
  expect(said(diagnosis, 'cuda-library')).toContain(join(directory, 'libcuda.so.1'));
});

test('without a driver the doctor says where it was looked for, and what to do', async () => {
  const diagnosis = await diagnose(machine, {
    env: { GPU_OWNER_SIMULATE: undefined, GPU_OWNER_NVML_LIBRARY: '/nonexistent/libnvidia-ml.so.1' },
  });
  expect(diagnosis.code).toBe(1);
  expect(diagnosis.ids).toContain('driver-missing');
  expect(said(diagnosis, 'driver-missing')).toMatch(
    /No NVIDIA driver: .* \/nonexistent\/libnvidia-ml\.so\.1\. -> Install the driver.*--gpus all/,
  );
  // The rest is looked at all the same.
  expect(diagnosis.findings.map(({ id }) => id)).toEqual(
    expect.arrayContaining(['version', 'configuration']),
  );
});

test('a path that was set and is wrong is named: no other place was looked at', async () => {
  const cut = join(machine.directory, 'libnvidia-ml.so.1');
  writeFileSync(cut, readFileSync(simulated('libnvidia-ml.so.1')).subarray(0, 20_000));
  const diagnosis = await diagnosePart(machine, 'driver', { env: { GPU_OWNER_NVML_LIBRARY: cut } });
  expect(said(diagnosis, 'driver-missing')).toMatch(
    /none of \S+\/libnvidia-ml\.so\.1 \(it is cut off: .* bytes .*\)\. -> .*GPU_OWNER_NVML_LIBRARY is set, so no other place/,
  );
});

test.each([
  [9, /not loaded/, whichContainer() === null ? /modprobe nvidia/ : /--gpus all/],
  [18, /different versions/, /reboot/],
])('a driver that fails with code %i is a problem', async (code, text, remedy) => {
  machine.set(`error=init:${code}`);
  const diagnosis = await diagnose(machine);
  expect(diagnosis).toMatchObject({ code: 1, ids: ['driver-failed'] });
  const [words, advice] = said(diagnosis, 'driver-failed').split(' -> ');
  expect(words).toMatch(text);
  expect(advice).toMatch(remedy);
});

test('a driver that isn’t loaded in a container is explained: --gpus is missing, or the host has no driver', async () => {
  machine.set('error=init:9');
  const diagnosis = await diagnosePart(machine, 'driver', { env: { container: 'docker' } });
  expect(said(diagnosis, 'driver-failed')).toMatch(
    / -> This is a container \(\w+\): start it with `--gpus all`.*On the host, `nvidia-smi` should work/,
  );
  expect(notLoaded(null)).toMatch(/modprobe nvidia/);
});

test('a driver without a CUDA library is a problem', async () => {
  const diagnosis = await diagnosePart(machine, 'driver', {
    env: { GPU_OWNER_CUDA_LIBRARY: '/nonexistent/libcuda.so.1' },
  });
  expect(diagnosis).toMatchObject({ code: 1, ids: ['cuda-library-missing'] });
  expect(said(diagnosis, 'cuda-library-missing')).toMatch(
    /\/nonexistent\/libcuda\.so\.1.*NVIDIA_DRIVER_CAPABILITIES/,
  );
});

test('a library that is not CUDA is a problem', async () => {
  const diagnosis = await diagnosePart(machine, 'driver', {
    env: { GPU_OWNER_CUDA_LIBRARY: simulated('libnvidia-ml.so.1') },
  });
  expect(diagnosis).toMatchObject({ code: 1, ids: ['cuda-library-broken'] });
  expect(said(diagnosis, 'cuda-library-broken')).toMatch(/lacks cuInit.*stubs/);
});

test('looking at the CUDA library does not initialise CUDA, which would bind the process', () => {
  const path = simulated('libcuda.so.1');
  expect(native().cudaLibrary(path)).toMatchObject({ path, missing: '' });
  expect(native().cudaState(path)).toBe('loaded');
});

test('persistence mode that is off is a note', async () => {
  expect((await diagnosePart(machine, 'driver')).ids).toEqual([]);
  const workstation = new Machine('workstation');
  try {
    const diagnosis = await diagnosePart(workstation, 'driver');
    expect(diagnosis).toMatchObject({ code: 0, ids: ['persistence-off'] });
    expect(said(diagnosis, 'persistence-off')).toMatch(/\(GPU 0\).*nvidia-persistenced/);
    workstation.set('unsupported=persistence'); // unknown is not off
    expect((await diagnosePart(workstation, 'driver')).ids).toEqual([]);
  } finally {
    await workstation.close();
  }
});
