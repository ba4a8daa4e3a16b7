// The driver, its GPUs, and CUDA, as machines with faults have them.
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { list } from '../../lib/check/gpus.ts';
import { BEFORE_RESET } from '../../lib/gpus/cuda-codes.ts';
import { native } from '../../lib/native.ts';
import { binaries } from '../support/binaries.ts';
import { type Diagnosis, diagnosePart, said } from '../support/doctor.ts';
import { Machine, type Starting } from '../support/machine.ts';

const simulated = (name: string) => join(binaries(), 'simulator', name);

let machine: Machine;
beforeEach(() => {
  machine = new Machine(8);
});
afterEach(() => machine.close());

const look = (starting: Starting = {}, on = machine): Promise<Diagnosis> =>
  diagnosePart(on, 'gpus', starting);

test('each fault of a GPU is found on that GPU, and on no other', async () => {
  await machine.status();
  machine.set('gpu=0', 'lost=on');
  machine.set('gpu=1', 'reset-required=on');
  machine.set('gpu=2', 'no-permission=on');
  machine.set('gpu=3', 'error=handle:11');
  machine.set('gpu=4', 'ecc-errors=3');
  machine.set('gpu=5', 'memory-repair=pending');
  machine.set('gpu=6', 'error=cuda-context:999');
  const diagnosis = await look();
  expect(diagnosis.code).toBe(1);
  expect(diagnosis.ids).toEqual([
    ...Array<string>(5).fill('gpu-unusable'),
    'memory-repair-pending',
    'cuda-failed',
  ]);
  const faults = said(diagnosis, 'gpu-unusable').split('\n');
  for (const [i, words] of [
    /^GPU 0: the GPU has fallen off the bus.* -> .*dmesg.*Reboot/,
    /^GPU 1: .*reset.* -> .*nvidia-smi --gpu-reset -i 1`/,
    /^GPU 2: no permission to use.* -> .*\/dev\/nvidia/,
    /^GPU 3: the kernel reports an interrupt problem.* -> /,
    /^GPU 4 .* -> .*--gpu-reset -i 4`/,
  ].entries())
    expect(faults[i]).toMatch(words);
  expect(faults[1]).toContain(BEFORE_RESET);
  expect(said(diagnosis, 'memory-repair-pending')).toMatch(/^GPU 5 .*--gpu-reset -i 5`/);
  expect(said(diagnosis, 'cuda-failed')).toMatch(/^GPU 6: CUDA failed with 999 \(CUDA_ERROR_UNKNOWN\)/);
  expect(said(diagnosis, 'gpus')).toMatch(/^GPUs 5, 6 and 7: 3 × Simulated GPU\. They answer; the others:/);
  expect(said(diagnosis, 'cuda')).toMatch(/^CUDA starts on GPUs 5 and 7\./);
});

test('if a GPU hangs, the others are told, and the doctor ends soon', async () => {
  await machine.status();
  machine.set('gpu=5', 'hang=memory');
  const diagnosis = await look();
  expect(diagnosis).toMatchObject({ code: 1, ids: ['gpu-unusable'] });
  expect(said(diagnosis, 'gpu-unusable')).toMatch(/^GPU 5.*does ?n.t answer/);
  expect(said(diagnosis, 'gpus')).toMatch(/^GPUs 0, 1, 2, 3, 4, 6 and 7: /);
});

test.each([
  ['wsl', ['persistence-off']],
  ['workstation', ['persistence-off']],
  ['a100x4-mig', []],
])('the doctor has the right findings for the machine %s', async (name, ids) => {
  const other = new Machine(name);
  try {
    const diagnosis = await look({}, other);
    expect(diagnosis.code).toBe(0);
    expect(diagnosis.ids.filter((id) => id !== 'persistence-off' || ids.includes(id))).toEqual(ids);
    if (name !== 'workstation') return;
    expect(said(diagnosis, 'persistence-off')).toMatch(/\(GPU 0\).*nvidia-persistenced/);
    other.set('unsupported=persistence'); // unknown is not off
    expect((await look({}, other)).ids).toEqual([]);
  } finally {
    await other.close();
  }
});

test('of a library that the linker searches, the doctor shows the file, not the name that was asked for', async () => {
  const directory = join(machine.directory, 'libraries');
  mkdirSync(directory);
  const names = ['libnvidia-ml.so.1', 'libcuda.so.1'];
  for (const name of names) copyFileSync(simulated(name), join(directory, name));
  const [GPU_OWNER_NVML_LIBRARY, GPU_OWNER_CUDA_LIBRARY] = names;
  const env = { LD_LIBRARY_PATH: directory, GPU_OWNER_NVML_LIBRARY, GPU_OWNER_CUDA_LIBRARY };
  const text = said(await look({ env }), 'driver');
  for (const name of names) expect(text).toContain(join(directory, name));
});

test('without a driver the doctor says what a claim says', async () => {
  const GPU_OWNER_NVML_LIBRARY = join(machine.directory, 'libnvidia-ml.so.1');
  writeFileSync(GPU_OWNER_NVML_LIBRARY, 'no library');
  const missing = await look({ env: { GPU_OWNER_NVML_LIBRARY } });
  expect(missing).toMatchObject({ code: 1, ids: ['ERR_NO_DRIVER'] });
  expect(said(missing, 'ERR_NO_DRIVER')).toMatch(
    /^No NVIDIA driver found\. -> Looked .*libnvidia-ml\.so\.1: .*file too short.* GPU_OWNER_NVML_LIBRARY is set, so no other place/,
  );
  machine.set('error=init:18');
  const failed = await look();
  expect(failed).toMatchObject({ code: 1, ids: ['ERR_DRIVER'] });
  expect(said(failed, 'ERR_DRIVER')).toMatch(/different versions.* -> .*reboot/);
});

test.each([
  ['is missing', '/nonexistent/libcuda.so.1', 'ERR_PLACEHOLDER', /\/nonexistent\/libcuda\.so\.1/],
  ['lacks functions', simulated('libnvidia-ml.so.1'), 'cuda-failed', /^The whole machine: .*500/],
])('a CUDA library that %s is a problem', async (_, GPU_OWNER_CUDA_LIBRARY, id, words) => {
  const diagnosis = await look({ env: { GPU_OWNER_CUDA_LIBRARY } });
  expect(diagnosis).toMatchObject({ code: 1, ids: [id] });
  expect(said(diagnosis, id)).toMatch(words);
});

test('looking at the CUDA library does not initialise CUDA, which would bind the process', () => {
  const path = simulated('libcuda.so.1');
  expect(native().cudaLibrary(path)).toMatchObject({ path, missing: '' });
  expect(native().cudaState(path)).toBe('loaded');
});

test('lists of GPUs are written in words', () => {
  const words = (...indices: number[]) => list(indices.map((index) => ({ index, instance: null })));
  expect(words(3)).toBe('GPU 3');
  const parts = [
    { index: 1, instance: null },
    { index: 1, instance: 2 },
    { index: 0, instance: 2 },
  ];
  expect(list(parts)).toBe('GPUs 1 and 0:2');
  expect(words(1, 0)).toBe('GPUs 0 and 1');
  expect(words(0, 1, 2, 3, 7)).toBe('GPUs 0, 1, 2, 3 and 7');
  expect(words(0, 2, 3)).toBe('GPUs 0, 2 and 3');
});
