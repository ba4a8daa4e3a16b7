import { describe, expect, it } from 'vitest';
import { matchesName } from '../../lib/gpus/selection.ts';
import { makeGPU, namedBy, refusal } from '../support/snapshots.ts';

const gpus = [
  makeGPU(0, { uuid: 'GPU-5d2c1111-0000-4000-8000-000000000000' }),
  makeGPU(1, { uuid: 'GPU-5d2c2222-0000-4000-8000-000000000001', name: 'NVIDIA GeForce RTX 3090' }),
  makeGPU(2, { uuid: 'GPU-ffff3333-0000-4000-8000-000000000002', name: 'NVIDIA T400' }),
  makeGPU(3, { uuid: '', name: 'NVIDIA T400', health: 'no-permission' }),
];

function indices(selectors: Parameters<typeof namedBy>[0]): number[] {
  return namedBy(selectors, gpus).map(({ index }) => index);
}

describe('the GPUs that a call names', () => {
  it.each([
    [0, [0]],
    ['0', [0]],
    ['00', [0]],
    [
      [2, 0, '2'],
      [0, 2],
    ],
    ['0,2', [0, 2]],
    ['0-2', [0, 1, 2]],
    ['1 - 1', [1]],
    ['GPU-ffff', [2]],
    ['gpu-FFFF3333-0000-4000-8000-000000000002', [2]],
    ['GPU-5d2c2', [1]],
    ['T400', [2, 3]],
    ['geforce', [1]],
    ['*3090', [1]],
    ['0-1,T400', [0, 1, 2, 3]],
  ])('%j names GPUs %j', (selectors, expected) => {
    expect(indices(selectors as string)).toEqual(expected);
  });

  it('says what exists where a GPU does not', () => {
    const message = refusal(() => namedBy(7, gpus, '--devices'));
    expect(message).toMatch(/^--devices: this machine has no GPU '7'\. There are 0 \(NVIDIA A100/);
    expect(message).toContain(
      '2 (NVIDIA T400, GPU-ffff3333-0000-4000-8000-000000000002) and 3 (NVIDIA T400)',
    );
    expect(refusal(() => namedBy('GPU-0', []))).toContain('no GPU at all');
    expect(refusal(() => namedBy('GPU-dead', gpus))).toContain("no GPU 'GPU-dead'");
    expect(refusal(() => namedBy('H100', gpus))).toContain("no GPU 'H100'");
    expect(refusal(() => namedBy('2-9', gpus))).toContain("doesn't have all GPUs of '2-9'");
  });

  it('tells how to name a model that is a number', () => {
    expect(refusal(() => namedBy('3090', gpus))).toContain("for the name write '*3090*'");
    expect(refusal(() => namedBy(5, gpus))).not.toContain('for the name');
  });

  it("wants more of a UUID's beginning that fits several", () => {
    expect(refusal(() => namedBy('GPU-5d2c', gpus))).toContain('the beginning of 2 UUIDs');
  });

  it.each([
    -1,
    '-1',
    1.5,
    '1.5.',
    Number.NaN,
    Number.POSITIVE_INFINITY,
    '',
    '0,',
    ',',
    '3-1',
    'GPU-',
    'GPU-xyz',
    `GPU-${'0'.repeat(100)}`,
    'MIG-',
    'MIG-xyz',
    'MIG-GPU-',
    '0:',
    '0:-1',
    '0:1:2',
    'a\nb',
    'x\x1b[2J',
    'n'.repeat(101),
    '99999999999999999999',
    null,
    true,
    {},
    [[0]],
  ])('refuses %j', (selector) => {
    refusal(() => namedBy(selector as string, gpus));
    refusal(() => namedBy([selector] as string[], gpus));
  });

  it("never matches a GPU without UUID by a UUID's beginning", () => {
    expect(indices('GPU-f')).toEqual([2]);
  });
});

describe('matchesName', () => {
  it.each([
    ['T400', 'NVIDIA T400', true],
    ['t4', 'NVIDIA T400', true],
    ['T400*', 'NVIDIA T400', false],
    ['*T400', 'NVIDIA T400', true],
    ['*RTX*90*', 'NVIDIA GeForce RTX 3090', true],
    ['*', '', true],
    ['a*a', 'a', false],
    ['a*a', 'aa', true],
    ['*ab*ab*', 'xab', false],
    ['*ab*ab', 'abab', true],
    ['.*', 'anything', false],
    ['(', 'anything', false],
  ])('tells whether %s matches %s: %s', (pattern, name, expected) => {
    expect(matchesName(pattern, name)).toBe(expected);
  });

  it('agrees with a regular expression for every short pattern and name', () => {
    const words = (letters: string, length: number): string[] =>
      length === 0 ? [''] : words(letters, length - 1).flatMap((w) => [...letters].map((l) => w + l));
    const names = [0, 1, 2, 3, 4].flatMap((n) => words('ab', n));
    for (const pattern of [1, 2, 3, 4].flatMap((n) => words('ab*', n)).filter((p) => p.includes('*'))) {
      const expression = new RegExp(`^${pattern.replaceAll('*', '.*')}$`);
      for (const name of names)
        expect([pattern, name, matchesName(pattern, name)]).toEqual([pattern, name, expression.test(name)]);
    }
  });

  it('takes no time for patterns that drive backtracking matchers mad', () => {
    const start = performance.now();
    matchesName(`${'*a'.repeat(40)}b`, 'a'.repeat(10000));
    expect(performance.now() - start).toBeLessThan(2000);
  });
});
