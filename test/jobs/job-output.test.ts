// The part of a job's output that `logs` and `top` read, with files that jobs can leave.
import { appendFileSync, mkdtempSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { JobOutput } from '../../lib/jobs/job-output.ts';
import { outputLines } from '../../lib/platform/text.ts';
import { processorTime } from '../support/time.ts';

const KIB = 1024;

let directory: string;
let path: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
  path = join(directory, 'output');
});
afterEach(() => rmSync(directory, { recursive: true }));

/** Reads once. @param onBytes is told of each part */
function read(onBytes = () => {}): { text: string; dropped: number[] } {
  const output = new JobOutput(path, 1);
  const parts: Buffer[] = [];
  const dropped: number[] = [];
  for (const { bytes, dropped: count } of output.read()) {
    parts.push(bytes);
    if (count > 0) dropped.push(count);
    onBytes();
  }
  output.close();
  return { text: Buffer.concat(parts).toString(), dropped };
}

describe('the output', () => {
  test('of a job that writes as fast as it is read ends where it went at first', () => {
    writeFileSync(path, 'x'.repeat(10));
    const { text } = read(() => appendFileSync(path, 'more'.repeat(KIB)));
    expect(text).toBe('x'.repeat(10));
  });

  test('may have blocks of NUL bytes that the job has written', () => {
    const written = `start${'\0'.repeat(300 * KIB)}end`;
    writeFileSync(path, written);
    const { text, dropped } = read();
    expect({ isSame: text === written, dropped }).toEqual({ isSame: true, dropped: [] });
  });

  test('has a gap where the keeper has cut it, also at the end', ({ skip }) => {
    writeFileSync(path, 'x'.repeat(64 * KIB));
    truncateSync(path, 192 * KIB);
    if (statSync(path).blocks * 512 === 192 * KIB) skip('the file system makes no holes');
    const { text, dropped } = read();
    expect({ length: text.length, dropped }).toEqual({ length: 64 * KIB, dropped: [128 * KIB] });
  });

  test('is read at once where the keeper has cut a terabyte', ({ skip }) => {
    const gap = KIB ** 4;
    writeFileSync(path, 'x'.repeat(64 * KIB));
    truncateSync(path, 64 * KIB + gap);
    if (statSync(path).blocks * 512 > gap) skip('the file system makes no holes');
    appendFileSync(path, 'end');
    const { text, dropped } = read();
    expect({ end: text.slice(64 * KIB), dropped }).toEqual({ end: 'end', dropped: [gap] });
  });
});

test('a line that is drawn again and again is shown as it was drawn last, without escape sequences', async () => {
  expect(outputLines('begun\n\repoch 1/3\repoch 2/3\r')).toEqual(['begun', 'epoch 2/3']);
  expect(outputLines('\u001b[2J\u001b]0;title\u0007  \u001b[31mred\u001b[0m\r\n\tx\u0000\n')).toEqual([
    '  red',
    '    x',
  ]);
  const draw = () => expect(outputLines(`${'\r'.repeat(128 * KIB)}x`)).toEqual(['x']);
  expect(await processorTime(draw)).toBeLessThan(2_000);
});
