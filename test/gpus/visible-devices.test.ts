import { describe, expect, it, vi } from 'vitest';
import type { GPU } from '../../lib/gpus/types.ts';
import { formatVisibleDevices, resolveVisibleDevices } from '../../lib/gpus/visible-devices.ts';
import { makeGPU, refusal } from '../support/snapshots.ts';

const instance = (uuid: string, gpuInstanceId: number, computeInstanceId = 0) => ({
  uuid,
  name: '1g.10gb',
  gpuInstanceId,
  computeInstanceId,
  memory: { totalBytes: null, usedBytes: null, freeBytes: null },
});

const A = 'GPU-aaaa1111-0000-4000-8000-000000000000';
const B = 'GPU-aaaa2222-0000-4000-8000-000000000001';
const C = 'GPU-cccc3333-0000-4000-8000-000000000002';
const M1 = 'MIG-11111111-0000-4000-8000-000000000000';
const M2 = 'MIG-22222222-0000-4000-8000-000000000000';
const gpus = [
  makeGPU(0, { uuid: A }),
  makeGPU(1, { uuid: B }),
  makeGPU(2, { uuid: C, migEnabled: true, migInstances: [instance(M1, 7), instance(M2, 8)] }),
];

const read = (value: string | undefined, order?: string) => resolveVisibleDevices(value, order, gpus);

describe('an inherited CUDA_VISIBLE_DEVICES', () => {
  it('allows all GPUs when it is not set', () => {
    expect(read(undefined)).toEqual({ uuids: null, migUuids: [] });
  });

  it.each([
    '',
    ' ',
    '-1',
    'NoDevFiles',
    'none',
    'void',
    ',',
    ',0',
    '-1,0',
    '3',
    '99999999999999999999',
    '\x1b[2J',
  ])('allows none when it is %j', (value) => {
    const { uuids, migUuids, note } = read(value);
    expect({ uuids, migUuids }).toEqual({ uuids: [], migUuids: [] });
    expect(note).toMatch(/CUDA_VISIBLE_DEVICES/);
    expect(note).not.toContain('\x1b');
  });

  it.each([
    ['0', [A]],
    ['1,0', [B, A]],
    [' 1 , 0 ', [B, A]],
    ['+1', [B]],
    ['01', [B]],
    ['1gpu,0x', [B, A]],
    [A, [A]],
    ['GPU-aaaa1', [A]],
    ['gpu-CCCC', [C]],
    [`${B},GPU-aaaa1`, [B, A]],
  ])('reads %j', (value, expected) => {
    expect(read(value)).toEqual({ uuids: expected, migUuids: [] });
  });

  it.each([
    ['0,-1,1', [A], "'-1'"],
    ['1,7,0', [B], "'7'"],
    ['0,,1', [A], "''"],
    ['0,gpu', [A], "'gpu'"],
    [`${A},GPU-dead,${B}`, [A], "'GPU-dead'"],
    [`0,${B}`, [A], `'${B}'`],
    [`${A},1`, [A], "'1'"],
    [`${A},${M1}`, [A], `'${M1}'`],
    ['GPU-aaaa', [], "'GPU-aaaa'"],
  ])('ends %j before the first entry that names no single GPU', (value, expected, culprit) => {
    const { uuids, note } = read(value);
    expect(uuids).toEqual(expected);
    expect(note).toContain(culprit);
  });

  it.each(['0,0', '0,1,0', `${A},GPU-aaaa1`, '1,01', `${M1},${M1}`])(
    'leaves none for %j, which names one twice',
    (value) => {
      const { uuids, migUuids, note } = read(value);
      expect([...(uuids ?? []), ...migUuids]).toEqual([]);
      expect(note).toContain('twice');
    },
  );

  it('tells MIG instances from whole GPUs', () => {
    expect(read(`${M2},${M1}`)).toEqual({ uuids: [], migUuids: [M2, M1] });
    expect(read('MIG-111')).toEqual({ uuids: [], migUuids: [M1] });
    expect(read(`MIG-${C}/8/0`)).toEqual({ uuids: [], migUuids: [M2] });
    expect(read(`${M1},${A}`)).toMatchObject({ uuids: [], migUuids: [M1] });
    expect(read(`MIG-${C}/9/0`)).toMatchObject({ uuids: [], migUuids: [] });
    expect(read(`MIG-${A}/8/0`)).toMatchObject({ uuids: [], migUuids: [] });
    expect(read('MIG-')).toMatchObject({ uuids: [], migUuids: [] });
  });

  it('has no numbers for what comes behind a GPU of which nobody knows whether CUDA counts it', () => {
    const silent = makeGPU(1, { uuid: '', health: 'not-responding' });
    const some = [makeGPU(0, { uuid: A }), silent, makeGPU(2, { uuid: B })];
    expect(resolveVisibleDevices('0', 'PCI_BUS_ID', some).uuids).toEqual([A]);
    expect(resolveVisibleDevices('1', 'PCI_BUS_ID', some).uuids).toEqual([]);
    expect(resolveVisibleDevices('2', 'PCI_BUS_ID', some).uuids).toEqual([]);
    expect(resolveVisibleDevices('0', undefined, some).uuids).toEqual([]);
    refusal(() => formatVisibleDevices([some[2] as GPU], 'index', some), 'ERR_DRIVER');
    expect(formatVisibleDevices([some[0] as GPU], 'index', some).CUDA_VISIBLE_DEVICES).toBe('0');
  });

  it('does not count GPUs that the driver gives no access to', () => {
    const some = [
      makeGPU(0, { uuid: '', health: 'no-permission' }),
      makeGPU(1, { uuid: A }),
      makeGPU(2, { uuid: B }),
    ];
    expect(resolveVisibleDevices('0,1', undefined, some).uuids).toEqual([A, B]);
    expect(resolveVisibleDevices('2', undefined, some).uuids).toEqual([]);
    expect(resolveVisibleDevices('GPU-', undefined, [makeGPU(0, { uuid: '' })]).uuids).toEqual([]);
  });
});

describe('numbers on a machine with different models', () => {
  const mixed = [
    makeGPU(0, { uuid: A, name: 'T400' }),
    makeGPU(1, { uuid: B, name: 'A100' }),
    makeGPU(2, { uuid: C, name: 'RTX 4090' }),
  ];

  it("count in CUDA's order, which is asked for", () => {
    expect(resolveVisibleDevices('0,2', undefined, mixed, () => [B, C, A]).uuids).toEqual([B, A]);
    expect(resolveVisibleDevices('0', 'FASTEST_FIRST', mixed, () => [B, C, A]).uuids).toEqual([B]);
  });

  it('count in bus order where the environment says so, without asking', () => {
    const ask = vi.fn(() => [B, C, A]);
    expect(resolveVisibleDevices('0,2', 'PCI_BUS_ID', mixed, ask).uuids).toEqual([A, C]);
    expect(ask).not.toHaveBeenCalled();
  });

  it('are not asked for where nothing needs it', () => {
    const ask = vi.fn(() => [B, C, A]);
    for (const value of [undefined, '', '-1', A, `${C},${A}`])
      resolveVisibleDevices(value, undefined, mixed, ask);
    resolveVisibleDevices('1', undefined, gpus, ask);
    expect(ask).not.toHaveBeenCalled();
  });

  it('allow nothing, and say so, where the order is unknown', () => {
    const failing = () => {
      throw new Error('no libcuda\x1b[2J');
    };
    for (const ask of [undefined, () => [], () => [B], failing]) {
      const { uuids, note } = resolveVisibleDevices('0', undefined, mixed, ask);
      expect(uuids).toEqual([]);
      expect(note).toContain('CUDA_DEVICE_ORDER=PCI_BUS_ID');
      expect(note).not.toContain('\x1b');
    }
    expect(resolveVisibleDevices('0', undefined, mixed, failing).note).toContain('no libcuda');
  });
});

describe('formatVisibleDevices', () => {
  it('writes UUIDs, in the order given', () => {
    expect(formatVisibleDevices([makeGPU(1, { uuid: B }), makeGPU(0, { uuid: A })])).toEqual({
      CUDA_VISIBLE_DEVICES: `${B},${A}`,
    });
    expect(formatVisibleDevices([])).toEqual({ CUDA_VISIBLE_DEVICES: '' });
  });

  it('writes indices together with the order that they count in', () => {
    expect(formatVisibleDevices([makeGPU(1), makeGPU(3)], 'index')).toEqual({
      CUDA_VISIBLE_DEVICES: '1,3',
      CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
    });
  });

  it('counts as CUDA does, without GPUs that give no access', () => {
    const all = [makeGPU(0), makeGPU(1, { uuid: '', health: 'no-permission' }), makeGPU(2)];
    expect(formatVisibleDevices([makeGPU(2)], 'index', all).CUDA_VISIBLE_DEVICES).toBe('1');
  });

  it('names the GPU of a Jetson by index: its UUID has no prefix, and CUDA would not read it', () => {
    const uuid = '54d0709b-558d-5a59-9c65-0c5fc14a21a4';
    const integrated = makeGPU(0, { uuid, name: 'Orin (nvgpu)' });
    const variables = { CUDA_VISIBLE_DEVICES: '0', CUDA_DEVICE_ORDER: 'PCI_BUS_ID' };
    expect(formatVisibleDevices([integrated], 'uuid')).toEqual(variables);
    const other = makeGPU(1, { name: 'RTX 6000' });
    const fastest = () => [other.uuid, `GPU-${uuid}`];
    expect(resolveVisibleDevices('1', undefined, [integrated, other], fastest).uuids).toEqual([uuid]);
  });

  it('never shows a GPU without a UUID', () => {
    refusal(() => formatVisibleDevices([makeGPU(0, { uuid: '' })]), 'ERR_INTERNAL');
  });

  it('is understood by the reader, for every subset and both ways', () => {
    const hidden = { uuid: '', health: 'no-permission' } as const;
    const four = [0, 1, 2, 3].map((i) => makeGPU(i, i === 1 ? hidden : {}));
    for (let bits = 1; bits < 16; bits++) {
      const subset = four.filter(({ index, uuid }) => (bits >> index) & 1 && uuid !== '');
      for (const as of ['uuid', 'index'] as const) {
        const variables = formatVisibleDevices(subset, as, four);
        const { uuids } = resolveVisibleDevices(
          variables.CUDA_VISIBLE_DEVICES,
          variables.CUDA_DEVICE_ORDER,
          four,
        );
        expect(uuids).toEqual(subset.map(({ uuid }) => uuid));
      }
    }
  });
});
