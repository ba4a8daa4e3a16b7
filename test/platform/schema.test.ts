import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { schema } from '../../lib/platform/index.ts';

const { among, amount, epochMs, flag, jsonOf, listOf, nullable, numeric, optional, or, record, text, whole } =
  schema;

const JOB = record({
  id: whole(),
  name: nullable(text),
  note: optional(text),
  state: or(among(['waiting', 'running']), 'running'),
  gpus: listOf(record({ index: whole(7) }), 2),
});

describe('a record', () => {
  test('keeps the fields of its schema, and leaves out others', () => {
    const value = { id: 1, name: 'x', state: 'waiting', gpus: [{ index: 7, uuid: 'y' }], more: true };
    expect(JOB(value, '')).toEqual({ id: 1, name: 'x', state: 'waiting', gpus: [{ index: 7 }] });
    expect(JOB({ id: 0, state: 3, gpus: [] }, '')).toEqual({ id: 0, name: null, state: 'running', gpus: [] });
  });

  test.each([
    [{ id: -1, gpus: [] }, 'job.id'],
    [{ id: 1, name: 5, gpus: [] }, 'job.name'],
    [{ id: 1, note: null, gpus: [] }, 'job.note'],
    [{ id: 1, gpus: [{ index: 0 }, { index: 8 }] }, 'job.gpus[1].index'],
    [{ id: 1, gpus: [{ index: 0 }, { index: 0 }, { index: 0 }] }, 'job.gpus'],
    [[], 'job'],
    [null, 'job'],
  ])('is refused with the place of the mistake: %j', (value, path) => {
    expect(() => JOB(value, 'job')).toThrow(new schema.Mismatch(path));
    expect(schema.readAs(JOB, value)).toBeNull();
  });

  test('has its fields from the object itself, not from its prototype', () => {
    expect(schema.readAs(record({ toString: text }), {})).toBeNull();
    expect(JSON.stringify(record({ a: flag })({ a: true, __proto__: { b: 1 } }, ''))).toBe('{"a":true}');
  });
});

test('numbers are in their range, and are no text', () => {
  const read = (check: schema.Check) =>
    [0, -1, 1.5, 2 ** 53, Number.NaN, '1'].map((each) => schema.readAs(check, each));
  expect(read(whole())).toEqual([0, null, null, null, null, null]);
  expect(read(amount())).toEqual([0, null, 1.5, null, null, null]);
  expect(read(epochMs)).toEqual([0, -1, 1.5, null, null, null]);
  expect(['1', '', ' ', 'x', '1.5'].map((each) => schema.readAs(numeric(whole()), each))).toEqual([
    1,
    null,
    null,
    null,
    null,
  ]);
});

test('whatever is read throws nothing', () => {
  fc.assert(
    fc.property(fc.anything(), (value) => {
      schema.readAs(JOB, value);
      schema.readAs(jsonOf(JOB), value);
      schema.readAs(schema.validOf(schema.pairOf(text, schema.absolutePath)), value);
    }),
  );
});
