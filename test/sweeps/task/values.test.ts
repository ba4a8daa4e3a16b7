import { describe, expect, test } from 'vitest';
import {
  canonical,
  formatValue,
  Literal,
  parseValue,
  stringifyValue,
} from '../../../lib/sweeps/task/index.ts';

describe('JSON', () => {
  test('keeps the spelling of numbers', () => {
    const text = '{"a":1.0,"b":[1e-3,-0.0,2],"c":12345678901234567890}';
    expect(stringifyValue(parseValue(text))).toBe(text);
  });

  test('has numbers that mean what they mean', () => {
    expect(canonical(parseValue('{"b":1.0,"a":1e-3}'))).toBe('{"a":0.001,"b":1}');
    expect(canonical(parseValue('-0.0'))).toBe('0');
  });

  test("may have Python's NaN and infinities, which are written back", () => {
    const text = '[NaN,Infinity,-Infinity]';
    expect(parseValue(text)).toEqual([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]);
    expect(stringifyValue(parseValue(text))).toBe(text);
  });

  test.each([
    ['"1.0 NaN \\" 2.0"', '1.0 NaN " 2.0'],
    ['"\\u00001.0"', '\u00001.0'],
    ['"\\u0000\\u00001.0"', '\u0000\u00001.0'],
  ])('has strings that stay strings: %s', (text, value) => {
    expect(parseValue(text)).toBe(value);
  });

  test.each(['{"\\u0000a":1.0}', '{"\\u0000a" :"\\u0000b:"}', '["\\u0000:",{"a:":"b"}]'])(
    'is written back as it was: %s',
    (text) => {
      const back = stringifyValue(parseValue(text));
      expect(JSON.parse(back)).toEqual(JSON.parse(text));
      expect(stringifyValue(parseValue(back))).toBe(back);
    },
  );

  test.each(['01', '1.', '.5', '+1', '--1', 'NaN2', 'Infinit', '{"a":1', 'nul', '[1,]', ''])(
    '%s is refused',
    (text) => {
      expect(() => parseValue(text)).toThrow(SyntaxError);
    },
  );

  test.each(['{"loss": 0.5 "accuracy": 1}', '{"loss": 0.5, "all": nan}', 'epoch:1:2', '{"loss": 0.5, "a'])(
    'has errors that are told of the text as it is: %s',
    (text) => {
      const messageOf = (read: (text: string) => unknown) => {
        try {
          return read(text);
        } catch (error) {
          return (error as Error).message;
        }
      };
      expect(messageOf(parseValue)).toBe(messageOf(JSON.parse));
    },
  );

  test('may have 200 levels', () => {
    const nested = (levels: number) => '['.repeat(levels) + ']'.repeat(levels);
    expect(stringifyValue(parseValue(nested(200)))).toBe(nested(200));
    expect(() => parseValue(nested(201))).toThrow(/nested more than 200 levels deep/);
    expect(parseValue(`["${nested(201)}",${'[],'.repeat(300)}1]`)).toHaveLength(302);
  });

  test('is shown as it was written where it is a scalar', () => {
    expect(formatValue(new Literal(true, 'yes'))).toBe('yes');
    expect(formatValue(parseValue('1.50'))).toBe('1.50');
    expect(formatValue(null)).toBe('');
    expect(formatValue(parseValue('[1.0,{"a":"b"}]'))).toBe('[1.0,{"a":"b"}]');
    expect(stringifyValue(new Literal(true, 'yes'))).toBe('true');
    expect(stringifyValue(new Literal(0.5, '.5'))).toBe('0.5');
  });
});
