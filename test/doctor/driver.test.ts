import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { native } from '../../lib/native.ts';
import { binaries } from '../binaries.ts';
import { Machine, output } from '../machine.ts';
import { diagnose, said } from './doctor.ts';

const simulated = (name: string) => join(binaries(), 'simulator', name);

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

test('which driver, by which file: version and path of what was really loaded', async () => {
  const diagnosis = await diagnose(machine);
  expect(said(diagnosis, 'driver')).toMatch(
    /^NVIDIA driver \d+\.\d+.*, \/.*\/simulator\/libnvidia-ml\.so\.1\. /,
  );
  expect(said(diagnosis, 'cuda-library')).toMatch(/^CUDA \d+\.\d, \/.*\/simulator\/libcuda\.so\.1\. /);
});

test('a library that the linker searches: the file that it took, not the name that was asked for', async () => {
  const directory = join(machine.directory, 'libraries');
  mkdirSync(directory);
  copyFileSync(simulated('libnvidia-ml.so.1'), join(directory, 'libnvidia-ml.so.1'));
  copyFileSync(simulated('libcuda.so.1'), join(directory, 'libcuda.so.1'));
  const diagnosis = await diagnose(machine, {
    env: {
      LD_LIBRARY_PATH: directory,
      GPU_OWNER_NVML_LIBRARY: 'libnvidia-ml.so.1',
      GPU_OWNER_CUDA_LIBRARY: 'libcuda.so.1',
    },
  });
  expect(said(diagnosis, 'driver')).toContain(join(directory, 'libnvidia-ml.so.1'));
  expect(said(diagnosis, 'cuda-library')).toContain(join(directory, 'libcuda.so.1'));
});

test('no driver: where it was looked for, and what to do', async () => {
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

test.each([
  [9, /not loaded/, /modprobe nvidia/],
  [18, /different versions/, /reboot/],
])('a driver that fails with code %i', async (code, text, remedy) => {
  machine.set(`error=init:${code}`);
  const diagnosis = await diagnose(machine);
  expect(diagnosis).toMatchObject({ code: 1, ids: ['driver-failed'] });
  const [words, advice] = said(diagnosis, 'driver-failed').split(' -> ');
  expect(words).toMatch(text);
  expect(advice).toMatch(remedy);
});

test('no CUDA library beside the driver', async () => {
  const diagnosis = await diagnose(machine, { env: { GPU_OWNER_CUDA_LIBRARY: '/nonexistent/libcuda.so.1' } });
  expect(diagnosis).toMatchObject({ code: 1, ids: ['cuda-library-missing'] });
  expect(said(diagnosis, 'cuda-library-missing')).toMatch(
    /\/nonexistent\/libcuda\.so\.1.*NVIDIA_DRIVER_CAPABILITIES/,
  );
});

test('a CUDA library that is none', async () => {
  const diagnosis = await diagnose(machine, {
    env: { GPU_OWNER_CUDA_LIBRARY: simulated('libnvidia-ml.so.1') },
  });
  expect(diagnosis).toMatchObject({ code: 1, ids: ['cuda-library-broken'] });
  expect(said(diagnosis, 'cuda-library-broken')).toMatch(/lacks cuInit.*stubs/);
});

test('a CUDA library of another version than the driver', async () => {
  const library = join(machine.directory, 'libcuda.so.999.10.01');
  copyFileSync(simulated('libcuda.so.1'), library);
  const diagnosis = await diagnose(machine, { env: { GPU_OWNER_CUDA_LIBRARY: library } });
  expect(diagnosis).toMatchObject({ code: 0, ids: ['cuda-library-version'] });
  expect(said(diagnosis, 'cuda-library-version')).toMatch(
    /libcuda\.so\.999\.10\.01 isn't of the driver's version, 580/,
  );
});

test('looking at the CUDA library does not initialise CUDA, which would bind the process', () => {
  const path = simulated('libcuda.so.1');
  expect(native().cudaLibrary(path)).toMatchObject({ path, missing: '' });
  expect(native().cudaState(path)).toBe('loaded');
});

test('persistence mode', async () => {
  expect((await diagnose(machine)).ids).toEqual([]);
  const workstation = new Machine('workstation');
  try {
    const diagnosis = await diagnose(workstation);
    expect(diagnosis).toMatchObject({ code: 0, ids: ['persistence-off'] });
    expect(said(diagnosis, 'persistence-off')).toMatch(/\(GPU 0\).*nvidia-persistenced/);
    workstation.set('unsupported=persistence'); // unknown is not off
    expect((await diagnose(workstation)).ids).toEqual([]);
  } finally {
    await workstation.close();
  }
});

test('MPS, by its process or by its pipe', async () => {
  const server = machine.startCommand(['simulate', 'occupy', '0', '--name', 'nvidia-cuda-mps-server']);
  const pid = await output(server, /ready (\d+)/);
  const diagnosis = await diagnose(machine);
  expect(diagnosis).toMatchObject({ code: 0, ids: ['mps'] });
  expect(said(diagnosis, 'mps')).toMatch(
    new RegExp(`its server \\(pid ${pid}\\) is on GPU 0\\..*nvidia-cuda-mps-control`),
  );
  server.stdin?.end();
  const pipes = join(machine.directory, 'mps');
  mkdirSync(pipes);
  writeFileSync(join(pipes, 'control'), '');
  await expect.poll(() => machine.processes(0)).toEqual([]);
  expect((await diagnose(machine)).ids).toEqual([]);
  expect(said(await diagnose(machine, { env: { CUDA_MPS_PIPE_DIRECTORY: pipes } }), 'mps')).toContain(
    `its control daemon has its pipe in ${pipes}`,
  );
});
