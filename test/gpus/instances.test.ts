import { describe, expect, it } from 'vitest';
import { normalizeCriteria } from '../../lib/config/criteria.ts';
import { judge } from '../../lib/gpus/judge.ts';
import { byPlace, label, select, separateKinds } from '../../lib/gpus/selection.ts';
import type { GPU, Verdict } from '../../lib/gpus/types.ts';
import { formatVisibleDevices, resolveVisibleDevices } from '../../lib/gpus/visible-devices.ts';
import { GIB, makeGPU, namedBy, refusal } from '../support/snapshots.ts';

const parent = makeGPU(0, {
  migEnabled: true,
  migInstances: [0, 2, 3].map((n) => ({
    uuid: `MIG-${n}0000000-aaaa-5bbb-8ccc-000000000000`,
    name: '',
    gpuInstanceId: 7 + n,
    computeInstanceId: 0,
    memory: { totalBytes: null, usedBytes: null, freeBytes: null },
  })),
});

function makeInstance(instance: number, totalBytes: number | null, freeBytes = totalBytes): GPU {
  return makeGPU(0, {
    instance,
    uuid: `MIG-${instance}0000000-aaaa-5bbb-8ccc-000000000000`,
    parent: parent.uuid,
    name: `NVIDIA A100-SXM4-80GB MIG ${instance}g`,
    migEnabled: null,
    powerWatts: null,
    utilizationPercent: null,
    memory: { totalBytes, freeBytes, usedBytes: 0 },
  });
}

const large = makeInstance(0, 40 * GIB);
const middle = makeInstance(2, 20 * GIB);
const small = makeInstance(3, 10 * GIB);
const instances = [large, middle, small];
const whole = [makeGPU(1), makeGPU(2)];
const all = [parent, ...instances, ...whole];
const names = (gpus: readonly GPU[] | null) => gpus?.map(label) ?? null;

describe('select', () => {
  it('takes whole GPUs, and instances where there are too few; never both', () => {
    expect(names(select([...instances, ...whole], 1))).toEqual(['1']);
    expect(names(select([...instances, ...whole], 2))).toEqual(['1', '2']);
    expect(names(select([...instances, ...whole], 3))).toEqual(['0:0', '0:2', '0:3']);
    expect(names(select([...instances, ...whole], 4))).toBeNull();
  });

  it('takes the smallest instances, of the same size those with most free memory, by their place', () => {
    expect(names(select(instances, 1))).toEqual(['0:3']);
    expect(names(select(instances, 2))).toEqual(['0:2', '0:3']);
    expect(names(select([makeInstance(1, GIB, 5), makeInstance(2, GIB, 9)], 1))).toEqual(['0:2']);
    expect(names(select([makeInstance(2, GIB), makeInstance(1, GIB)], 1))).toEqual(['0:1']);
    expect(names(select([makeInstance(1, null), makeInstance(2, null), large], 1))).toEqual(['0:0']);
    expect(names([...all].reverse().sort(byPlace))).toEqual(names(all));
  });
});

describe('separateKinds', () => {
  const FREE: Verdict = { state: 'free', reason: null, transient: false };
  const states = (gpus: readonly GPU[], count: number, changes: Record<string, Verdict['state']> = {}) =>
    separateKinds(
      gpus.map((gpu) => ({
        gpu,
        verdict: {
          ...FREE,
          state: changes[label(gpu)] ?? (gpu === parent ? 'unavailable' : 'free'),
        } as Verdict,
      })),
      count,
    )
      .filter(({ verdict }) => verdict.state === 'free')
      .map(({ gpu }) => label(gpu));

  it('offers GPUs and instances where one is asked for', () => {
    expect(states(all, 1)).toEqual(['0:0', '0:2', '0:3', '1', '2']);
  });

  it('offers whole GPUs where several are asked for, also when these are leased', () => {
    expect(states(all, 2)).toEqual(['1', '2']);
    expect(states(all, 2, { 1: 'leased' })).toEqual(['2']);
  });

  it('offers instances where several are asked for and there can’t be enough whole GPUs', () => {
    expect(states(all, 3)).toEqual(['0:0', '0:2', '0:3']);
    expect(states(all, 2, { 2: 'excluded' })).toEqual(['0:0', '0:2', '0:3']);
    expect(states([parent, ...instances], 2)).toEqual(['0:0', '0:2', '0:3']);
  });

  it('offers whole GPUs where neither will do', () => {
    expect(states(all, 9)).toEqual(['1', '2']);
  });
});

describe('an instance', () => {
  const judged = (gpu: GPU, criteria: object, visible: string[] | null = null) =>
    judge(gpu, {
      lease: null,
      visible: visible === null ? null : new Set(visible),
      criteria: normalizeCriteria(criteria),
    });

  it('is judged like a GPU, on what is known of it', () => {
    expect(judged(small, {}).state).toBe('free');
    expect(judged(small, { minFreeMemory: '15GiB' }).reason).toMatch(/has only 10 GiB/);
    expect(judged(small, { maxTemperature: 20 }).state).toBe('busy');
    expect(judged(small, { maxPower: 80 }).reason).toMatch(/doesn't tell power/);
    expect(judged(small, { exclude: 'MIG' }).state).toBe('excluded');
    expect(judged(parent, {}).reason).toBe('MIG is on: divided into instances, which are claimed instead');
    expect(judged(parent, { force: true }).state).toBe('unavailable');
  });

  it('may be used where it, or its GPU, is visible', () => {
    expect(judged(small, {}, [small.uuid]).state).toBe('free');
    expect(judged(small, {}, [parent.uuid]).state).toBe('free');
    expect(judged(small, {}, [middle.uuid, '']).state).toBe('excluded');
    expect(judged(whole[0] as GPU, {}, ['']).state).toBe('excluded');
  });

  it.each([
    ['0:2', ['0:2']],
    [' 0:2 ', ['0:2']],
    ['0', ['0', '0:0', '0:2', '0:3']],
    ['0-1', ['0', '0:0', '0:2', '0:3', '1']],
    ['MIG-2', ['0:2']],
    ['mig-30000000-AAAA', ['0:3']],
    [parent.uuid.slice(0, 12), ['0', '0:0', '0:2', '0:3']],
    ['MIG 2g', ['0:2']],
    ['*80GB', ['0', '1', '2']],
    ['A100', ['0', '0:0', '0:2', '0:3', '1', '2']],
  ])('is named by %s', (selector, expected) => {
    expect(names(namedBy(selector, all))).toEqual(expected);
  });

  it.each([
    ['0:1', /no MIG instance '0:1'\. There are 0 \(.*, 0:0 \(/],
    ['1:0', /no MIG instance '1:0'/],
    ['MIG-9', /no MIG instance 'MIG-9'/],
    ['MIG-', /isn't a UUID of a MIG instance/],
  ])('is not named by %s', (selector, message) => {
    expect(refusal(() => namedBy(selector, all))).toMatch(message);
  });

  it('is shown to CUDA by its UUID, whatever is asked for', () => {
    const uuids = `${middle.uuid},${small.uuid}`;
    expect(formatVisibleDevices([middle, small], 'uuid', all)).toEqual({ CUDA_VISIBLE_DEVICES: uuids });
    expect(formatVisibleDevices([middle, small], 'index', all)).toEqual({ CUDA_VISIBLE_DEVICES: uuids });
    expect(formatVisibleDevices(whole, 'index', all).CUDA_VISIBLE_DEVICES).toBe('1,2');
  });

  it('has no number in an inherited CUDA_VISIBLE_DEVICES', () => {
    expect(resolveVisibleDevices('1,2', 'PCI_BUS_ID', all).uuids).toEqual(whole.map(({ uuid }) => uuid));
    expect(resolveVisibleDevices('3', 'PCI_BUS_ID', all).uuids).toEqual([]);
    expect(resolveVisibleDevices(small.uuid, undefined, all).migUuids).toEqual([small.uuid]);
  });
});
