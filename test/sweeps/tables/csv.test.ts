import { parse } from 'csv-parse/sync';
import { expect, test } from 'vitest';
import { csvLine } from '../../../lib/platform/index.ts';
import { type CSVRow, decode, parseRows } from '../../../lib/sweeps/tables/csv.ts';
import { Random } from '../../support/random.ts';

const rowsOf = (bytes: Buffer): CSVRow[] => [...parseRows(decode(bytes).text)];

const PIECES = ['a', '1.5', ',', '"', '\n', '\r\n', ' ', 'é', '😀', '""', 'x'.repeat(50), ''];

test.each([1, 2])('what we write is read back, by us and by others (%i)', (seed) => {
  const random = new Random(seed);
  const next = (below: number) => random.integer(below);
  const newline = seed % 2 ? '\n' : '\r\n';
  const columns = 1 + next(6);
  const cells = Array.from({ length: 3_000 }, () =>
    Array.from({ length: columns }, () =>
      Array.from({ length: next(7) }, () => PIECES[next(PIECES.length)]).join(''),
    ),
  );
  (cells[5] as string[])[0] = '"\n'.repeat(100_000);
  const bytes = Buffer.from(cells.map((row) => csvLine(row) + newline).join(''));
  const rows = rowsOf(bytes);
  expect(rows.map((row) => row.cells)).toEqual(cells);
  expect(parse(bytes, { record_delimiter: newline, relax_column_count: true })).toEqual(cells);
  for (const row of rows) expect(row.newline).toBe(newline);
  const [last] = rows.slice(-1);
  const breaks = Buffer.from(decode(bytes).text.slice(0, last?.start)).reduce(
    (sum, byte) => sum + (byte === 0x0a ? 1 : 0),
    0,
  );
  expect(last?.line).toBe(breaks + 1);
});

test('lines are read as other programs write them', () => {
  const text = 'a,b\r\r\n\n1,x"y"\n , "q"\n"",""\n3';
  const rows = rowsOf(Buffer.from(text));
  expect(rows.map(({ cells, line }) => [line, ...cells])).toEqual([
    [1, 'a', 'b'],
    [3, '1', 'x"y"'],
    [4, ' ', ' "q"'],
    [5, '', ''],
    [6, '3'],
  ]);
  expect(rows.at(-1)?.newline).toBe('');
});

test('a quote that is never closed takes the rest of the text, and is reported', () => {
  const rows = rowsOf(Buffer.from('a,b\n1,"x\n2,3\n'));
  expect(rows.map(({ open, newline, line }) => [open, newline, line])).toEqual([
    [false, '\n', 1],
    [true, '', 2],
  ]);
});
