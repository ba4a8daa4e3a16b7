// The results of benchmarks, and how a terminal shows them.
import { describe, expect, test } from 'vitest';
import { load, names } from '../../bench/benchmarks.js';
import { median, summarize } from '../../bench/measure.js';
import { duration, number, times } from '../../bench/numbers.js';
import { plain, summaryText, tableText, wrap } from '../../bench/print.js';
import { checkTables } from '../../bench/table.js';

describe('statistics', () => {
  test('the statistics of many values are the median, the middle half, and what one of a hundred exceeds', () => {
    const values = Array.from({ length: 200 }, (_, i) => 200 - i);
    expect(summarize(values)).toEqual({ n: 200, median: 100.5, low: 51, high: 151, p99: 199 });
    expect(values[0]).toBe(200); // not sorted in place
  });

  test('the statistics of few values are their median and range', () => {
    expect(summarize([7])).toEqual({ n: 1, median: 7, low: 7, high: 7, p99: 7 });
    expect(summarize([10, 9])).toEqual({ n: 2, median: 9.5, low: 9, high: 10, p99: 10 });
    expect(median([3, 1, 2])).toBe(2);
    expect(summarize([]).median).toBeNaN();
  });
});

test('figures have three digits that count', () => {
  const values = [0, 0.00123, 0.0999, 0.1234, 1, 9.999, 12.34, 99.96, 123.4, 1234567, -2.5];
  expect(values.map(number)).toEqual([
    '0',
    '0.00123',
    '0.0999',
    '0.123',
    '1.00',
    '10.0',
    '12.3',
    '100',
    '123',
    '1,234,567',
    '-2.50',
  ]);
  expect([0.0123, 1.236, 99.9, 751.9].map(times)).toEqual(['0.012', '1.24', '99.90', '752']);
  expect([9.6, 252].map(duration)).toEqual(['10 s', '4 min 12 s']);
});

const table = {
  name: 'warm',
  title: 'Warm, per look',
  unit: 'us',
  note: 'simulated driver, no latency',
  base: 'C',
  rows: [
    { label: '1 GPU', series: { C: summarize([2, 2, 3]), 'gpu-owner': summarize([3, 4, 5]) } },
    { label: '8 GPUs', series: { C: summarize([5]), 'gpu-owner': summarize([6]) } },
  ],
  targets: [
    { text: 'at most 2 us over C', value: 1, limit: 2, met: true },
    { text: 'nothing over C', value: 1, limit: 0, met: false },
  ],
};

describe('on a terminal', () => {
  test('a table is printed with units, ratios and targets', () => {
    expect(tableText(table).split('\n')).toEqual([
      'Warm, per look, in us; base: C (simulated driver, no latency)',
      '                     median   middle half  99 % below  times base',
      '  1 GPU   C            2.00  2.00 to 3.00        3.00',
      '          gpu-owner    4.00  3.00 to 5.00        5.00        2.00',
      '  8 GPUs  C            5.00',
      '          gpu-owner    6.00                                  1.20',
      '  met:    at most 2 us over C: 1.00',
      '  missed: nothing over C: 1.00',
    ]);
  });

  test('printed tables are at most 100 columns wide', () => {
    const long = (count: number) => 'words that go on '.repeat(count).trim();
    const series = {
      [long(9)]: summarize([1e6, 2e6]),
      C: summarize([1e6, 1e6]),
      ['x'.repeat(150)]: summarize([1]),
    };
    const rows = [
      { label: long(20), series },
      { label: 'y'.repeat(60), series },
    ];
    const targets = [{ text: long(12), value: 123456, limit: 1, met: false }];
    const text = tableText({ ...table, rows, targets, note: long(30) });
    expect(Math.max(...text.split('\n').map((line) => line.length))).toBeLessThanOrEqual(100);
    expect(text.replace(/\s/g, '')).toContain('x'.repeat(20));
    const benchmarks = {
      [long(1)]: {
        title: long(2),
        tables: [{ ...table, targets }],
        leftOut: [{ what: long(8), why: long(8) }],
        error: long(20),
      },
    };
    expect(
      Math.max(
        ...summaryText({ benchmarks })
          .split('\n')
          .map((line) => line.length),
      ),
    ).toBeLessThanOrEqual(100);
  });

  test('the summary lists targets, failures and what was left out', () => {
    const benchmarks = {
      look: {
        title: 'A look',
        tables: [table],
        leftOut: [{ what: 'nvidia-smi', why: 'it is not installed' }],
      },
      start: { title: 'A start', tables: [], leftOut: [], error: 'it broke' },
    };
    expect(summaryText({ benchmarks }, plain).split('\n')).toEqual([
      'Targets: 1 met, 1 missed',
      '  missed: look, Warm, per look: nothing over C: 1.00',
      'Left out:',
      '  look: nvidia-smi: it is not installed',
      'Failed:',
      '  start: it broke',
    ]);
  });

  test('lines of notes break between words', () => {
    expect(wrap('one two three', 7)).toEqual(['one two', 'three']);
    expect(wrap('abcdefghij k', 4)).toEqual(['abcd', 'efgh', 'ij k']);
    expect(wrap('', 4)).toEqual(['']);
  });
});

describe('the form of tables', () => {
  test('a table with all members is accepted', () => {
    expect(() => checkTables([table])).not.toThrow();
    expect(() => checkTables([])).not.toThrow();
  });

  const row = table.rows[0];
  test.each([
    ['no array', undefined, /array of tables/],
    ['no title', [{ ...table, title: undefined }], /'warm': 'title' is missing/],
    ['a name twice', [table, table], /two of that name/],
    ['no rows', [{ ...table, rows: [] }], /no rows/],
    ['an unknown base', [{ ...table, base: 'D' }], /base 'D' is no series/],
    ['a row without series', [{ ...table, rows: [{ ...row, series: {} }] }], /no series/],
    ['bare numbers', [{ ...table, rows: [{ ...row, series: { C: 5 } }] }], /series 'C' has no n/],
    ['nothing measured', [{ ...table, rows: [{ ...row, series: { C: summarize([]) } }] }], /has no median/],
    ['a target without value', [{ ...table, targets: [{ text: 'quick', met: true }] }], /a target needs/],
  ])('%s is an error', (_, tables, message) => {
    expect(() => checkTables(tables)).toThrow(message);
  });
});

test.each(names)('the benchmark %s says what it asks', async (name) => {
  const benchmark = await load(name);
  expect(benchmark.title).toMatch(/^[A-Z]/);
  expect(benchmark.question).toMatch(/\?$/);
  expect(benchmark.run).toBeTypeOf('function');
});
