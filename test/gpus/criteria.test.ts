import { describe, expect, it } from 'vitest';
import { type Criteria, normalizeCriteria } from '../../lib/config/criteria.ts';
import { checkDevices } from '../../lib/gpus/selection.ts';
import { GIB, makeGPU, refusal } from '../support/snapshots.ts';

describe('normalizeCriteria', () => {
  it('sets no condition by default', () => {
    const expected = {
      minFreeMemory: null,
      maxUsedMemory: null,
      allowProcesses: false,
      maxPower: null,
      maxUtilization: null,
      maxTemperature: null,
      allowUnknown: false,
      devices: [],
      exclude: [],
      force: false,
      names: {},
    };
    expect(normalizeCriteria()).toEqual(expected);
    expect(normalizeCriteria({ minFreeMemory: undefined, devices: undefined })).toEqual(expected);
  });

  it('turns everything into plain units', () => {
    const criteria = normalizeCriteria({
      minFreeMemory: '20GiB',
      maxUsedMemory: 0,
      allowProcesses: true,
      maxPower: '80W',
      maxUtilization: 1,
      maxTemperature: '60C',
      force: true,
    });
    expect(criteria).toMatchObject({
      minFreeMemory: 20 * GIB,
      maxUsedMemory: 0,
      allowProcesses: true,
      maxPower: 80,
      maxUtilization: 1,
      maxTemperature: 60,
      force: true,
    });
    expect(normalizeCriteria({ maxUsedMemory: 'any' }).maxUsedMemory).toBe('any');
  });

  it('rejects unknown options with a suggestion', () => {
    expect(refusal(() => normalizeCriteria({ minFreeMemroy: 1 }))).toBe(
      "there is no option 'minFreeMemroy'; did you mean 'minFreeMemory'?",
    );
    expect(refusal(() => normalizeCriteria({ colour: 1 }))).toContain('minFreeMemory, maxUsedMemory');
    expect(refusal(() => normalizeCriteria({ colour: undefined }))).toContain('colour');
    expect(refusal(() => normalizeCriteria({ maxwait: 1 }, { alsoKnown: ['maxWait'] }))).toContain(
      "'maxWait'",
    );
    for (const key of ['constructor', '__proto__', 'toString', 'names', '\x1b[2J']) {
      expect(refusal(() => normalizeCriteria(JSON.parse(`{${JSON.stringify(key)}: 1}`)))).toContain(
        'no option',
      );
    }
  });

  it('leaves keys that others read alone', () => {
    expect(normalizeCriteria({ count: 2, maxWait: -1 }, { alsoKnown: ['count', 'maxWait'] })).toEqual(
      normalizeCriteria(),
    );
  });

  it("calls options by the user's names", () => {
    const names = { minFreeMemory: '--min-free-memory' };
    expect(refusal(() => normalizeCriteria({ minFreeMemory: 'lots' }, { names }))).toMatch(
      /^--min-free-memory: 'lots'/,
    );
    expect(refusal(() => normalizeCriteria({ maxPower: 'lots' }, { names }))).toMatch(/^maxPower: 'lots'/);
  });

  it.each([null, 2, 'x', [], true])('rejects %j for options', (options) => {
    expect(refusal(() => normalizeCriteria(options))).toContain('options must be an object');
  });

  it.each<[keyof Criteria, unknown]>([
    ['minFreeMemory', 'any'],
    ['minFreeMemory', null],
    ['minFreeMemory', -1],
    ['maxUsedMemory', Number.POSITIVE_INFINITY],
    ['allowProcesses', 'yes'],
    ['allowProcesses', 1],
    ['allowProcesses', null],
    ['maxPower', Number.NaN],
    ['maxUtilization', 101],
    ['maxTemperature', '60F'],
    ['devices', []],
    ['devices', null],
    ['devices', -1],
    ['exclude', 1.5],
    ['exclude', {}],
    ['exclude', ['ok', 1.5]],
    ['exclude', ['\x1b[2J']],
    ['exclude', 'x'.repeat(101)],
    ['force', 'true'],
  ])('rejects %s: %j', (key, value) => {
    expect(refusal(() => normalizeCriteria({ [key]: value }))).toMatch(new RegExp(`^${key}: `));
  });
});

describe('checkDevices', () => {
  it('rejects GPUs of a call that do not exist, and none of a configuration file', () => {
    const gpus = [makeGPU(0), makeGPU(1)];
    const names = { devices: '--devices' };
    checkDevices(normalizeCriteria({ devices: [0, 'GPU-1'], exclude: 1 }), gpus);
    expect(refusal(() => checkDevices(normalizeCriteria({ devices: 5 }, { names }), gpus))).toMatch(
      /^--devices: /,
    );
    expect(refusal(() => checkDevices(normalizeCriteria({ exclude: 'GPU-dead' }), gpus))).toMatch(
      /^exclude: /,
    );
    const [rule] = normalizeCriteria({ exclude: 'GPU-dead' }).exclude;
    if (!rule) throw new Error('no rule');
    checkDevices(
      { ...normalizeCriteria(), exclude: [{ ...rule, source: '/etc/gpu-owner/config.yaml' }] },
      gpus,
    );
  });
});
