import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { sentences } from '../../lib/check/finding.ts';
import { diagnose, said } from '../support/doctor.ts';
import { Machine } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

test('a missing native part is told once, as a claim tells it', async () => {
  const diagnosis = await diagnose(machine, { env: { GPU_OWNER_BUILD: join(machine.directory, 'nothing') } });
  expect(diagnosis.ids).toEqual(['ERR_UNSUPPORTED_PLATFORM']);
  expect([diagnosis.code, said(diagnosis, 'ERR_UNSUPPORTED_PLATFORM')]).toEqual([
    1,
    expect.stringMatching(/The native addon at .*can't be loaded/),
  ]);
});

test('what an error says is taken apart into what is and what to do', () => {
  expect(sentences('it is so. Do this.')).toEqual({ text: 'It is so.', remedy: 'Do this.' });
  expect(sentences('in /a.b is nothing. `x` does it. Or not')).toEqual({
    text: 'In /a.b is nothing.',
    remedy: '`x` does it. Or not',
  });
  expect(sentences('it is so')).toEqual({ text: 'It is so', remedy: null });
});
