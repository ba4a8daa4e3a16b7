import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parse } from 'csv-parse/sync';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type CSVRow, formatRow, readRows } from '../../../lib/experiments/results/csv.ts';
import { Random } from '../../support/random.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'csv-'));
});
afterEach(() => rmSync(directory, { recursive: true }));

async function rowsOf(bytes: Buffer): Promise<CSVRow[]> {
  const path = join(directory, 'table.csv');
  writeFileSync(path, bytes);
  const file = await open(path);
  try {
    const rows: CSVRow[] = [];
    for await (const batch of readRows(file, 0)) rows.push(...batch.rows);
    return rows;
  } finally {
    await file.close();
  }
}

const PIECES = ['a', '1.5', ',', '"', '\n', '\r\n', ' ', 'é', '😀', '""', 'x'.repeat(50), ''];

test.each([1, 2, 3, 4])('what we write is read back, by us and by others (%i)', async (seed) => {
  const random = new Random(seed);
  const next = (below: number) => random.integer(below);
  const newline = seed % 2 ? '\n' : '\r\n';
  const columns = 1 + next(6);
  const cells = Array.from({ length: 6_000 }, () =>
    Array.from({ length: columns }, () =>
      Array.from({ length: next(7) }, () => PIECES[next(PIECES.length)]).join(''),
    ),
  );
  // Big ones lie across the blocks that are read at once.
  (cells[5] as string[])[0] = '"\n'.repeat(300_000);
  const bytes = Buffer.from(cells.map((row) => formatRow(row) + newline).join(''));
  const rows = await rowsOf(bytes);
  expect(rows.map((row) => row.cells)).toEqual(cells);
  expect(parse(bytes, { record_delimiter: newline, relax_column_count: true })).toEqual(cells);
  for (const row of rows) {
    expect(row.newline).toBe(newline);
    if (row.start > 0) expect(bytes[row.start - 1]).toBe(0x0a);
    expect(bytes.toString('latin1', row.end, row.end + newline.length)).toBe(newline);
  }
  const [last] = rows.slice(-1);
  const breaks = bytes.subarray(0, last?.start).reduce((sum, byte) => sum + (byte === 0x0a ? 1 : 0), 0);
  expect(last?.line).toBe(breaks + 1);
});

test('lines are read as other programs write them', async () => {
  const text = 'a,b\r\r\n\n1,x"y"\n , "q"\n"",""\n3';
  const rows = await rowsOf(Buffer.from(text));
  expect(rows.map(({ cells, line }) => [line, ...cells])).toEqual([
    [1, 'a', 'b'],
    [3, '1', 'x"y"'],
    [4, ' ', ' "q"'],
    [5, '', ''],
    [6, '3'],
  ]);
  expect(rows.at(-1)?.newline).toBe('');
});

test('a quote that nobody closes doesn’t fill the memory', async () => {
  const bytes = Buffer.alloc(18 * 1024 * 1024, 'x\n');
  bytes.write('a,b\n1,"');
  await expect(rowsOf(bytes)).rejects.toMatchObject({ line: 2, message: expect.stringContaining('16 MiB') });
});
