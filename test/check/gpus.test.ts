import { afterEach, beforeEach, expect, test } from 'vitest';
import type { FindingId } from '../../lib/check/finding.ts';
import { list, reportGPUs } from '../../lib/check/gpus.ts';
import { BEFORE_RESET } from '../../lib/gpus/cuda-codes.ts';
import type { GPU } from '../../lib/gpus/types.ts';
import { diagnose, diagnosePart, said } from '../support/doctor.ts';
import { Machine, output } from '../support/machine.ts';
import { makeGPU } from '../support/snapshots.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(8);
});
afterEach(() => machine.close());

test('each fault of a GPU is found on that GPU, and on no other', async () => {
  machine.set('gpu=0', 'lost=on');
  machine.set('gpu=1', 'reset-required=on');
  machine.set('gpu=2', 'no-permission=on');
  machine.set('gpu=3', 'error=handle:11');
  machine.set('gpu=4', 'compute-mode=exclusive-process');
  machine.set('gpu=5', 'compute-mode=prohibited');
  machine.set('gpu=6', 'hidden-memory=3GiB');
  machine.set('gpu=7', 'mig=on');
  const diagnosis = await diagnose(machine);
  const expected: [FindingId, RegExp][] = [
    ['gpu-lost', /^GPU 0: the GPU has fallen off the bus\. -> .*dmesg/],
    ['gpu-reset-required', /^GPU 1: the GPU needs a reset\. -> .*nvidia-smi --gpu-reset -i 1`/],
    ['gpu-no-permission', /^GPU 2: no permission to use it\. -> .*\/dev\/nvidia/],
    ['gpu-failed', /^GPU 3: the kernel reports an interrupt problem.* -> /],
    [
      'compute-mode-exclusive',
      /GPU 4 is exclusive-process: one process at a time.*--compute-mode=DEFAULT -i 4`/,
    ],
    ['compute-mode-prohibited', /GPU 5 is prohibited: no CUDA program.*--compute-mode=DEFAULT -i 5`/],
    ['mig', /^GPU 7 .*: MIG is on, divided into 1×3g\.40gb, 1×2g\.20gb and 2×1g\.10gb/],
    ['hidden-use', /^GPU 6 .*: 3 GiB in use, but no process is visible\. Claims call it busy/],
  ];
  expect(diagnosis.code).toBe(1);
  expect(diagnosis.ids).toEqual(expected.map(([id]) => id));
  for (const [id, pattern] of expected) expect(said(diagnosis, id)).toMatch(pattern);
  for (const id of ['gpu-reset-required', 'mig', 'hidden-use'] as const)
    expect(said(diagnosis, id)).toContain(BEFORE_RESET);
  expect(said(diagnosis, 'gpus')).toMatch(/^GPUs 4 to 7: 4 × Simulated GPU/);
});

test('a free GPU on which CUDA fails is a problem, though the driver answers', async () => {
  machine.set('gpu=0', 'error=cuda-context:999');
  const diagnosis = await diagnose(machine);
  expect(diagnosis).toMatchObject({ code: 1, ids: ['cuda-failed'] });
  expect(said(diagnosis, 'cuda-failed')).toMatch(/^GPU 0: CUDA failed with 999 \(CUDA_ERROR_UNKNOWN\)/);
});

test('the doctor names what is wrong with the memory of which GPU', async () => {
  machine.set('gpu=0', 'ecc-errors=3');
  machine.set('gpu=1', 'memory-repair=failed');
  machine.set('gpu=2', 'memory-repair=pending');
  const diagnosis = await diagnosePart(machine, 'driver');
  const ids = ['gpu-unhealthy', 'gpu-unhealthy', 'memory-repair-pending'];
  expect(diagnosis.ids.filter((id) => ids.includes(id))).toEqual(ids);
  expect(said(diagnosis, 'memory-repair-pending')).toMatch(/^GPU 2 .*--gpu-reset -i 2`/);
});

test('if a GPU hangs, the others are told, and the doctor ends soon', async () => {
  await machine.status();
  machine.set('gpu=5', 'hang=memory');
  const begin = performance.now();
  const diagnosis = await diagnose(machine);
  expect(performance.now() - begin).toBeLessThan(12_000);
  expect(diagnosis).toMatchObject({ code: 1, ids: ['gpu-not-responding'] });
  expect(said(diagnosis, 'gpu-not-responding')).toMatch(/^GPU 5.*does not answer/);
  expect(said(diagnosis, 'gpus')).toMatch(/^GPUs 0 to 4, 6 and 7: /);
});

test('a visible process is nothing to worry about, a hidden one is', async () => {
  const occupier = machine.startCommand(['simulate', 'occupy', '1', '--memory', '5GiB']);
  await output(occupier, /ready/);
  expect((await diagnosePart(machine, 'driver')).ids).toEqual([]);
  machine.set('gpu=1', 'hidden-processes=on');
  const diagnosis = await diagnosePart(machine, 'driver');
  expect(diagnosis).toMatchObject({ code: 0, ids: ['hidden-use'] });
  expect(said(diagnosis, 'hidden-use')).toMatch(/^GPU 1 .*5\.4 GiB in use/);
});

test.each([
  ['wsl', ['persistence-off']],
  ['a100x4-mig', ['mig', 'mig']],
  ['rtx4090x2-display', null],
  ['old-driver', null],
])('the doctor has the right findings for the machine %s', async (name, ids) => {
  const other = new Machine(name);
  try {
    const diagnosis = await diagnosePart(other, 'driver');
    expect(diagnosis.code).toBe(0);
    const worse = diagnosis.ids.filter((id) => id !== 'persistence-off' || ids?.includes(id)).sort();
    expect(worse).toEqual((ids ?? []).toSorted());
  } finally {
    await other.close();
  }
});

/** The findings on a driver that lists these GPUs. */
function found(gpus: readonly GPU[], remedies: (string | undefined)[] = []): FindingId[] {
  const ids: FindingId[] = [];
  const add = (id: FindingId, _text: string, remedy?: string) => {
    ids.push(id);
    remedies.push(remedy);
  };
  const report = { add, step: () => {} };
  const describe = () => ({ name: null, user: null, uid: null, alive: 'gone' as const });
  reportGPUs(report, gpus, [], describe);
  return ids;
}

const whole = makeGPU(0, {
  uuid: 'GPU-1',
  name: 'A100',
  memory: { totalBytes: 80, usedBytes: 0, freeBytes: 80, reservedBytes: 0 },
});

test('a driver without a GPU is a problem', () => {
  expect(found([])).toEqual(['no-gpus']);
  expect(found([whole])).toEqual(['gpus']);
});

test('MIG without an instance is a warning', () => {
  const remedies: (string | undefined)[] = [];
  expect(found([{ ...whole, migEnabled: true }], remedies)).toEqual(['gpus', 'mig-empty']);
  expect(remedies.at(-1)).toContain(`turn it off: ${BEFORE_RESET} \`nvidia-smi -i 0 -mig 0\``);
});

test('lists of GPUs are written in words', () => {
  const words = (...indices: number[]) => list(indices.map((index) => ({ index })));
  expect(words(3)).toBe('GPU 3');
  expect(list([{ index: 1 }, { index: 1, instance: 2 }, { index: 0, instance: 2 }])).toBe('GPUs 1 and 0:2');
  expect(words(1, 0)).toBe('GPUs 0 and 1');
  expect(words(0, 1, 2, 3, 7)).toBe('GPUs 0 to 3 and 7');
  expect(words(0, 2, 3)).toBe('GPUs 0, 2 and 3');
});
